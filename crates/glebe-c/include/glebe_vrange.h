/*
 * glebe_vrange.h: programs written for the volatile ranges patches, v10, build unchanged.
 *
 * USE  cc -include glebe_vrange.h program.c -lglebe, for C and for C++. The program's own
 *   `syscall(314, start, length, mode, &purged)`, which is mostly inside a function vrange() of its
 *   own, then calls glebe_vrange(), which glebe.h describes. Every other system call goes to the
 *   kernel as it is.
 * ANSWERS  The bytes done, which may be fewer than asked for, or 0; -1 with errno. EINVAL: `start`
 *   is no multiple of a page, the length is less than a page, the range wraps round, or the mode
 *   does not exist. EFAULT: `purged` cannot be written. ENOMEM: no memory or no room for more
 *   mappings. EDEADLK: a SIGBUS handler interrupted a call of glebe, or a fork. EPERM or ENOSYS:
 *   userfaultfd is denied or missing. glebe_last_error() has the text.
 * SIGBUS  A touch of a page that was taken is SIGBUS with the code BUS_ADRERR. A handler that was
 *   installed with SA_SIGINFO, before the first mark or after it, finds the address of the page in
 *   si_addr: the patches' call takes it as it is. The machine's context has the byte's. The address
 *   of every other SIGBUS is the kernel's. A handler of signal(), or of sigaction() without
 *   SA_SIGINFO, is told no address. A handler may make the page non-volatile and write it again.
 * LIMITS  Linux with the GNU C library on 64-bit processors that pass the arguments of a function
 *   with `...` as those of any other: x86-64, aarch64, RISC-V. Memory of MAP_SHARED becomes
 *   volatile where it is anonymous, of a memfd or of a file on tmpfs, and is so for the process of
 *   the first call and its later children alone. The call stops in front of a file on disk, and
 *   answers 0 if that is at once. The kernel takes none of this memory. With -DGLEBE_VRANGE_RECLAIM
 *   a thread of the program does, whenever memory is short (glebe_vrange_reclaim); by itself it
 *   starts none. A touch of what it took finds zeros and is no SIGBUS. On x86-64 the number
 *   314 is sched_setattr(2) today: a `start` below 4 MiB is taken for its process number. A file
 *   that is built with this header cannot define a function syscall() or sigaction() of its own.
 *
 * This header includes no other, so that the program's own feature macros still count. It declares
 * both functions as the C library does, and binds them to other symbols.
 */
#ifndef GLEBE_VRANGE_H
#define GLEBE_VRANGE_H

#ifndef __ASSEMBLER__
#ifdef __GNUC__
#pragma GCC system_header
#endif

/* What the C library says of these functions in C++, where a declaration must repeat it. */
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

/* One of a program's files starts the thread; the others are told that it runs. */
__attribute__((constructor, unused)) static void glebe_vrange_start_reclaim(void) {
    glebe_vrange_reclaim(0);
}
#endif

#ifdef __cplusplus
}
#endif

#undef GLEBE_VRANGE_THROW
#endif /* __ASSEMBLER__ */

/* For programs that expect them of the patched kernel's headers: -DGLEBE_VRANGE_NAMES. */
#ifdef GLEBE_VRANGE_NAMES
#define VRANGE_VOLATILE 0
#define VRANGE_NONVOLATILE 1
#define __NR_vrange 314
#define SYS_vrange __NR_vrange
#endif

#endif /* GLEBE_VRANGE_H */
