//! [`clear_vector_registers`] removes a cipher's keys from the vector registers. The dynamic loader
//! saves these registers to the stack when it resolves a symbol, and a core file contains the
//! stack.
#![allow(unsafe_code)] // Safety: the assembly changes only registers that it declares.

#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub extern "C" fn clear_vector_registers() {
    use std::arch::asm;

    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these registers, which the block declares overwritten.
        unsafe {
            asm!(
                ".irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpxord zmm\\n, zmm\\n, zmm\\n",
                ".endr",
                clobber_abi("C"),
                options(nostack, nomem),
            );
        }
    }
    if is_x86_feature_detected!("avx") {
        // SAFETY: as above.
        unsafe { asm!("vzeroall", clobber_abi("C"), options(nostack, nomem)) };
    } else {
        // SAFETY: as above; every x86-64 processor has these registers.
        unsafe {
            asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "xorps xmm\\n, xmm\\n",
                ".endr",
                clobber_abi("C"),
                options(nostack, nomem),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(never)]
pub extern "C" fn clear_vector_registers() {
    // SAFETY: the block declares all registers that it overwrites.
    unsafe {
        std::arch::asm!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "movi v\\n\\().2d, #0",
            ".endr",
            ".irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "movi v\\n\\().2d, #0",
            ".endr",
            out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            clobber_abi("C"),
            options(nostack, nomem),
        );
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub extern "C" fn clear_vector_registers() {}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn no_register_keeps_what_was_in_it() {
        if !is_x86_feature_detected!("avx") {
            println!("skipped: no AVX");
            return;
        }
        let mut kept = [[1_u8; 32]; 16];
        // SAFETY: the block calls a C function and stores 16 registers of 32 bytes into `kept`.
        unsafe {
            std::arch::asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vcmptrueps ymm\\n, ymm\\n, ymm\\n",
                ".endr",
                "call {clear}",
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vmovups [r12 + 32 * \\n], ymm\\n",
                ".endr",
                "vzeroupper",
                clear = sym clear_vector_registers,
                in("r12") kept.as_mut_ptr(),
                clobber_abi("C"),
            );
        }
        assert_eq!(kept, [[0; 32]; 16]);
        if !is_x86_feature_detected!("avx512f") {
            return println!("skipped: no AVX-512");
        }
        let mut kept = [[1_u8; 64]; 16];
        // SAFETY: as above, for the upper 16 registers of 64 bytes.
        unsafe {
            std::arch::asm!(
                ".irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpternlogd zmm\\n, zmm\\n, zmm\\n, 255",
                ".endr",
                "call {clear}",
                ".irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vmovups [r12 + 64 * (\\n - 16)], zmm\\n",
                ".endr",
                "vzeroupper",
                clear = sym clear_vector_registers,
                in("r12") kept.as_mut_ptr(),
                clobber_abi("C"),
            );
        }
        assert_eq!(kept, [[0; 64]; 16]);
    }
}
