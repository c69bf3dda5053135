/* priority.h - gives the screen priority when the cores are busy. Each function is for the calling thread; if the
 * system refuses, nothing happens. */
#ifndef PP_BASE_PRIORITY_H
#define PP_BASE_PRIORITY_H

/* For a thread that computes: niced below the program's first thread. Calling it again changes nothing. */
void pp_priority_compute(void);

/* For a thread that needs little time but at once: asks for short slices. When a key wakes it, it does not have to wait
 * until a computing thread on its core has used up its slice (2 to 10 ms). Its child threads and programs do not
 * inherit this. Linux 6.12 or newer. */
void pp_priority_screen(void);

#endif
