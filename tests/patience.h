/* patience.h - how long tests wait for something that must happen. */
#ifndef PP_TESTS_PATIENCE_H
#define PP_TESTS_PATIENCE_H

/* With a sanitizer the program is tens of times slower, and so is the loading of a model. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_PATIENCE_MS = 600000 };
#else
enum { TEST_PATIENCE_MS = 60000 };
#endif

#endif
