/* priority.h - who comes first when the cores are busy: the screen. Each function is for the calling thread; where the
 * system refuses, nothing happens. */
#ifndef PP_BASE_PRIORITY_H
#define PP_BASE_PRIORITY_H

/* For a thread that computes: niced below the program's first thread. To call it twice changes nothing. */
void pp_priority_compute(void);

/* For a thread that needs little time but needs it at once: asks for short slices. When a key wakes it, it need not
 * wait until a thread that computes on its core has used up its own slice (2 to 10 ms). Threads and programs that it
 * starts do not inherit this. Linux 6.12 or newer. */
void pp_priority_screen(void);

#endif
