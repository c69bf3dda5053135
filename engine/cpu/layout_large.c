/* layout_large.c - packed weights in huge pages if the file system does not provide them.
 *
 * A file whose page cache consists of 4 KiB pages (ext4 before Linux 6.16, or a file that another program copied) needs
 * a TLB entry for each, which costs up to a fifth of the speed. So while the model is already in use, the keeper copies
 * the mapping into anonymous huge pages, piece by piece, and moves each piece over the file's pages in one step
 * (mremap): threads that read there find the same bytes before and after. The system can drop the file's pages when it
 * needs memory, but not the copy, which is therefore made only if memory is plentiful. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/cpu/layout_int.h"

enum { PIECE = 16 * PP_LARGE_PAGE };

/* Whether the system provides huge pages for memory that is marked by madvise. */
static bool system_has_large_pages(void)
{
    char modes[128] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    bool read = f && fgets(modes, sizeof modes, f);
    if (f)
        fclose(f);
    return read && (strstr(modes, "[madvise]") || strstr(modes, "[always]"));
}

/* Whether the file mapping around p, which has been read, has huge pages. */
static bool mapped_large(const uint8_t *p)
{
    char line[1024];
    unsigned long begin, end, kb;
    bool ours = false, large = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    while (f && !large && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            if (ours)
                break;
            ours = begin <= (uintptr_t)p && (uintptr_t)p < end;
        } else if (ours && sscanf(line, "FilePmdMapped: %lu", &kb) == 1) {
            large = kb > 0;
        }
    }
    if (f)
        fclose(f);
    return large;
}

static bool wanted(const struct pp_weights *w, size_t first)
{
    if (w->region_bytes < w->least_enlarged || w->region_bytes < first + PP_LARGE_PAGE || !atomic_load(&w->mapped) ||
        w->region_bytes > pp_memory_free() / 2 || !system_has_large_pages())
        return false;
    const volatile uint8_t *probe = w->region + first;
    (void)*probe;
    return !mapped_large(w->region + first);
}

/* Moves the n bytes at p, which no thread writes any more, to huge pages. */
static bool move_piece(struct pp_weights *w, uint8_t *p, size_t n)
{
    const size_t room_bytes = n + PP_LARGE_PAGE;
    uint8_t *room = mmap(NULL, room_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return false;
    const size_t head = (0 - (uintptr_t)room) % PP_LARGE_PAGE;
    uint8_t *copy = room + head;
    madvise(copy, n, MADV_HUGEPAGE);
    memcpy(copy, p, n);
    bool moved = mprotect(copy, n, PROT_READ) == 0 &&
                 mremap(copy, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, p) != MAP_FAILED;
    if (!moved) {
        munmap(room, room_bytes);
        return false;
    }
    if (head)
        munmap(room, head);
    munmap(copy + n, room_bytes - head - n);
    atomic_fetch_sub(&w->mapped, n);
    return true;
}

void pp_layout_enlarge(struct pp_weights *w)
{
    const size_t mapped = w->store.written; /* bytes beyond are anonymous memory, if the file was given up */
    size_t at = (0 - (uintptr_t)w->region) % PP_LARGE_PAGE;
    if (!wanted(w, at))
        return;
    for (int i = 0; i < w->n && at + PP_LARGE_PAGE <= mapped; i++) {
        struct pp_weight *m = w->list[i];
        if (!m->bytes)
            continue;
        if (!pp_weight_make(m, 0, m->t->ne[1], &w->stop, NULL)) /* checked and repaired: it is not written any more */
            return;
        const size_t made = m->offset + pp_weight_span(m), end = made < mapped ? made : mapped;
        const bool last = end == mapped;
        while (end >= at + (last ? PP_LARGE_PAGE : PIECE)) {
            size_t n = end - at < PIECE ? (end - at) / PP_LARGE_PAGE * PP_LARGE_PAGE : PIECE;
            if (atomic_load(&w->stop) || !move_piece(w, w->region + at, n))
                return;
            at += n;
        }
    }
}
