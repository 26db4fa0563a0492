//! The health that an NVMe drive reports: log page 2 of the NVMe specification ("SMART / Health
//! Information"), by the admin command that `nvme smart-log` sends (`NVME_IOCTL_ADMIN_CMD` of
//! include/uapi/linux/nvme_ioctl.h, torvalds/linux).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// The length of the log page in bytes.
pub const HEALTH_BYTES: usize = 512;

/// The number of the ioctl: `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const ADMIN_COMMAND: u32 = 3 << 30 | (size_of::<AdminCommand>() as u32) << 16 | 0x4e << 8 | 0x41;
const GET_LOG_PAGE: u8 = 0x02;
const HEALTH: u32 = 0x02;
/// Selects the log page of the controller instead of one namespace.
const ALL_NAMESPACES: u32 = u32::MAX;
/// Milliseconds after which the kernel stops waiting for the drive.
const TIMEOUT_MS: u32 = 5000;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Debug, Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words2: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    words10: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

/// Reads the health log of the controller behind `device`, such as `/dev/nvme0`. Needs
/// CAP_SYS_ADMIN, and blocks for up to five seconds.
pub fn health(device: &File) -> io::Result<[u8; HEALTH_BYTES]> {
    let mut page = [0; HEALTH_BYTES];
    let address: *mut u8 = page.as_mut_ptr();
    let mut command = AdminCommand {
        opcode: GET_LOG_PAGE,
        namespace: ALL_NAMESPACES,
        address: address.expose_provenance() as u64,
        data_length: HEALTH_BYTES as u32,
        timeout_ms: TIMEOUT_MS,
        ..AdminCommand::default()
    };
    // The number of 32-bit words minus one, and the id of the log page.
    command.words10[0] = (HEALTH_BYTES as u32 / 4 - 1) << 16 | HEALTH;
    let argument: *mut AdminCommand = &raw mut command;
    #[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
    // SAFETY: the command is whole, and the kernel writes its result into it. The kernel copies
    // `data_length` bytes, the length of `page`, to `address`, the address of `page`. Nothing else
    // refers to `page` until the call returns. On a file that is not an NVMe device, the call
    // fails.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), ADMIN_COMMAND as libc::Ioctl, argument) };
    match status {
        0 => Ok(page),
        status if status > 0 => Err(io::Error::other(format!("the drive answers with status {status:#x}"))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_call_is_that_of_the_kernel() {
        assert_eq!((size_of::<AdminCommand>(), ADMIN_COMMAND), (72, 0xc048_4e41));
    }

    #[test]
    fn what_is_no_drive_is_an_error() {
        let error = health(&File::open("/dev/null").unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    /// Needs a drive and the privilege to read it; passes without them.
    #[test]
    fn a_drive_of_this_machine_answers_or_refuses() {
        for name in ["/dev/nvme0", "/dev/nvme1"] {
            let Ok(device) = File::open(name) else { continue };
            if let Ok(page) = health(&device) {
                let kelvin = u16::from_le_bytes([page[1], page[2]]);
                assert!((200..400).contains(&kelvin), "{name}: {kelvin} K");
            }
        }
    }
}
