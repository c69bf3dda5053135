/* slice.h - how soon the scheduler lets a woken thread run. */
#ifndef PP_UI_SLICE_H
#define PP_UI_SLICE_H

/* Asks for short slices for the calling thread, which needs little time but needs it at once: when a key wakes it, it
 * need not wait until a thread that computes on its core has used up its own (2 to 10 ms). Threads and programs that it
 * starts do not inherit them. Linux 6.12 or newer; elsewhere, and where it is refused, nothing happens. */
void pp_slice_short(void);

#endif
