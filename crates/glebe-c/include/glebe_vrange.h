/*
 * glebe_vrange.h: programs written for the volatile ranges patches, v10, build unchanged with it.
 *
 * USE  cc -include glebe_vrange.h program.c -lglebe, for C and for C++. The program's own
 *   `syscall(314, start, length, mode, &purged)`, usually inside its own function vrange(), then
 *   calls glebe_vrange(), which glebe.h describes. Every other system call reaches the kernel
 *   unchanged.
 * ANSWERS  The call returns the bytes done, which may be fewer than asked for, or 0; or it returns
 *   -1 with errno. EINVAL: `start` is no multiple of a page, the length is less than a page, the
 *   range wraps round, or the mode does not exist. EFAULT: `purged` cannot be written. ENOMEM: no
 *   memory, or no room for more mappings. EAGAIN: a purge is under way, or the kernel can neither
 *   keep nor take a page. EDEADLK: a SIGBUS handler interrupted a call of glebe, or a fork. EIO:
 *   other errors. EPERM or ENOSYS: userfaultfd is denied or missing. glebe_last_error() has the
 *   text.
 * SIGBUS  A touch of a taken page raises SIGBUS with the code BUS_ADRERR. A handler installed with
 *   SA_SIGINFO, before or after the first mark, finds the address of the page in si_addr, and may
 *   pass it on to the patches' call without a change. The machine context has the address of the
 *   byte. The address of every other SIGBUS is the kernel's. A handler installed with signal(), or
 *   with sigaction() without SA_SIGINFO, gets no address. A handler may make the page non-volatile
 *   and write it again.
 * LIMITS  The header works on Linux with the GNU C library, on 64-bit processors that pass the
 *   arguments of a function with `...` like those of any other function: x86-64, aarch64, RISC-V.
 *   glebe.h says which MAP_SHARED memory can be volatile, and for which processes. The kernel takes
 *   none of it. With -DGLEBE_VRANGE_RECLAIM a thread of the program takes it whenever memory is
 *   short (glebe_vrange_reclaim); without this macro no thread starts. On x86-64 the number 314 is
 *   now sched_setattr(2): if `start` is below 4 MiB, the header takes the call for sched_setattr(2)
 *   with a process number. A file that is built with this header cannot define its own function
 *   syscall() or sigaction().
 *
 * This header includes no other header, so the program's own feature macros still have an effect.
 * The header declares both functions as the C library does, and binds them to other symbols.
 */
#ifndef GLEBE_VRANGE_H
#define GLEBE_VRANGE_H

#ifndef __ASSEMBLER__
#ifdef __GNUC__
#pragma GCC system_header
#endif

/* The exception specification of these functions in C++: a declaration must repeat the C
 * library's. */
#if !defined(__cplusplus)
#define GLEBE_VRANGE_THROW
#elif __cplusplus >= 201103L
#define GLEBE_VRANGE_THROW noexcept(true)
#else
#define GLEBE_VRANGE_THROW throw()
#endif

struct sigaction;

#ifdef __cplusplus
extern "C" {
#endif

extern long syscall(long number, ...) GLEBE_VRANGE_THROW __asm__("glebe_vrange_syscall");
extern int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
    GLEBE_VRANGE_THROW __asm__("glebe_vrange_sigaction");

#ifdef GLEBE_VRANGE_RECLAIM
extern int glebe_vrange_reclaim(unsigned long margin_bytes);

/* One file of a program starts the thread; the others get the answer that it already runs. */
__attribute__((constructor, unused)) static void glebe_vrange_start_reclaim(void) {
    glebe_vrange_reclaim(0);
}
#endif

#ifdef __cplusplus
}
#endif

#undef GLEBE_VRANGE_THROW
#endif /* __ASSEMBLER__ */

/* -DGLEBE_VRANGE_NAMES defines names that programs expect from the patched kernel's headers. */
#ifdef GLEBE_VRANGE_NAMES
#define VRANGE_VOLATILE 0
#define VRANGE_NONVOLATILE 1
#define __NR_vrange 314
#define SYS_vrange __NR_vrange
#endif

#endif /* GLEBE_VRANGE_H */
