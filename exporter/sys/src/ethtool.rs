//! The statistics of a network device's driver, and the versions of driver and firmware, by the
//! `SIOCETHTOOL` call.
//!
//! Names and values come in two calls, and between them a driver may add queues. The kernel then
//! writes as many values as there are, not as many as were requested. So the answers go to memory
//! that ends at a guard page: an answer that is too long is an error of the call, never a write
//! beyond the memory.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::NonNull;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The most statistics accepted; no driver has more, with those of every queue.
const MAX_STATS: usize = 32_768;
/// The length of a name in bytes.
const NAME: usize = 32;
/// The commands, `ETHTOOL_*`.
const DRIVER: u32 = 0x03;
const STRINGS: u32 = 0x1b;
const STATS: u32 = 0x1d;
const COUNT: u32 = 0x37;
/// The string set of the names of statistics, `ETH_SS_STATS`.
const SET_STATS: u32 = 1;

/// A socket for queries about devices, by their names in this network namespace.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    pub version: String,
    pub firmware: String,
}

impl Ethtool {
    pub fn open() -> io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket })
    }

    /// The kernel's index of the device. Another namespace may have a device with the same name,
    /// but name and index together are unique.
    pub fn index(&self, device: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, device)?)
    }

    pub fn driver(&self, device: &str) -> io::Result<Driver> {
        let mut memory = Memory::new(DRIVER_BYTES)?;
        memory.set_words(&[DRIVER]);
        self.call(device, &mut memory)?;
        Ok(parse_driver(memory.bytes()))
    }

    /// Returns all statistics of the driver. The error kind is `Unsupported` if it has none.
    pub fn stats(&self, device: &str) -> io::Result<Vec<(String, u64)>> {
        let count = self.count(device)?;
        let mut names = Memory::new(12 + count * NAME)?;
        names.set_words(&[STRINGS, SET_STATS, count as u32]);
        self.call(device, &mut names)?;
        let mut values = Memory::new(8 + count * 8)?;
        values.set_words(&[STATS, count as u32]);
        self.call(device, &mut values)?;
        let (names, values) = (parse_names(names.bytes()), parse_values(values.bytes()));
        if names.len() != values.len() {
            return Err(io::Error::new(
                io::ErrorKind::Interrupted,
                "the driver changed its statistics meanwhile",
            ));
        }
        Ok(names.into_iter().zip(values).collect())
    }

    fn count(&self, device: &str) -> io::Result<usize> {
        let mut memory = Memory::new(20)?;
        // A mask of 64 bits, then a number for each bit set.
        memory.set_words(&[COUNT, 0, 1 << SET_STATS, 0]);
        self.call(device, &mut memory)?;
        match (word(memory.bytes(), 8), word(memory.bytes(), 16) as usize) {
            (0, _) | (_, 0) => Err(io::ErrorKind::Unsupported.into()),
            (_, count) if count > MAX_STATS => {
                Err(io::Error::other(format!("{count} statistics are too many")))
            }
            (_, count) => Ok(count),
        }
    }

    fn call(&self, device: &str, memory: &mut Memory) -> io::Result<()> {
        let mut ifr_name = [0; libc::IFNAMSIZ];
        if device.len() >= ifr_name.len() || device.bytes().any(|b| b == 0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        let ifru_data = memory.start.as_ptr().cast();
        let mut request = libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data } };
        let request: *mut libc::ifreq = &raw mut request;
        #[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
        // SAFETY: the request is whole and its name ends with a zero. The kernel writes to the
        // mapping at `ifru_data`, which nothing else refers to while `memory` is borrowed. An
        // answer that is longer than the mapping reaches the guard page behind it, which cannot be
        // written, and the call fails.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A multiple of every page size that Linux uses, in bytes.
const PAGE: usize = 65_536;

/// Zeroed memory for one request and its answer, with a guard page behind it.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    /// Bytes before the guard page.
    length: usize,
}

impl Memory {
    fn new(bytes: usize) -> io::Result<Self> {
        let length = bytes.max(1).next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        #[expect(unsafe_code, reason = "no allocator of Rust's makes guard pages")]
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no memory
        // in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length + PAGE, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self { start, length };
        #[expect(unsafe_code, reason = "as above")]
        // SAFETY: the range is the new mapping without its guard page.
        let result =
            unsafe { libc::mprotect(start.as_ptr().cast(), length, libc::PROT_READ | libc::PROT_WRITE) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(memory) }
    }

    fn bytes(&self) -> &[u8] {
        #[expect(unsafe_code, reason = "the mapping as a slice")]
        // SAFETY: `length` bytes of the mapping are readable, initialised with zeros by the kernel,
        // live as long as `self`, and are written only through `&mut self`.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.length)
        }
    }

    fn set_words(&mut self, words: &[u32]) {
        #[expect(unsafe_code, reason = "the mapping as a slice")]
        // SAFETY: as in `bytes`; it is writable too, and `&mut self` makes this the only reference.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) };
        for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "gives the mapping back")]
        // SAFETY: the range is exactly the mapping of `new`, and no reference to it outlives
        // `self`.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.length + PAGE);
        }
    }
}

/// The size of `struct ethtool_drvinfo`: five texts and some numbers.
const DRIVER_BYTES: usize = 196;

fn parse_driver(bytes: &[u8]) -> Driver {
    let text = |i: usize| bytes.get(4 + i * NAME..4 + (i + 1) * NAME).map(text).unwrap_or_default();
    Driver { name: text(0), version: text(1), firmware: text(2) }
}

fn parse_names(bytes: &[u8]) -> Vec<String> {
    let names = bytes.get(12..).unwrap_or_default().chunks_exact(NAME);
    names.take(word(bytes, 8) as usize).map(text).collect()
}

fn parse_values(bytes: &[u8]) -> Vec<u64> {
    let values = bytes.get(8..).unwrap_or_default().chunks_exact(8);
    let value = |eight: &[u8]| eight.try_into().map_or(0, u64::from_ne_bytes);
    values.take(word(bytes, 4) as usize).map(value).collect()
}

/// The four bytes at `at` as a number; 0 past the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    four.map_or(0, u32::from_ne_bytes)
}

/// The text before its padding. Some drivers pad with blanks, and indent names that belong
/// together.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.trim().chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn answers() {
        let name = |text: &str| [text.as_bytes(), &vec![0; NAME - text.len()]].concat();
        let names = [
            words(&[STRINGS, SET_STATS, 2]),
            name("rx_prio3_pause"),
            name("     tx_discards "),
            name("not one"),
        ];
        assert_eq!(parse_names(&names.concat()), ["rx_prio3_pause", "tx_discards"]);
        let values =
            [words(&[STATS, 2]), 7u64.to_ne_bytes().to_vec(), u64::MAX.to_ne_bytes().to_vec(), vec![9; 8]];
        assert_eq!(parse_values(&values.concat()), [7, u64::MAX]);
        let driver =
            [words(&[DRIVER]), name("mlx5_core"), name("6.8.0"), name("28.39.1002 (MT_0838)")].concat();
        let driver = parse_driver(&driver);
        assert_eq!((driver.name.as_str(), driver.firmware.as_str()), ("mlx5_core", "28.39.1002 (MT_0838)"));
    }

    #[test]
    fn an_answer_that_was_cut_or_garbled_is_as_much_as_there_is() {
        let whole = [words(&[STRINGS, SET_STATS, u32::MAX]), vec![0xff; 3 * NAME]].concat();
        for length in 0..whole.len() {
            let cut = &whole[..length];
            assert!(parse_names(cut).len() <= 3 && parse_values(cut).len() <= 13);
            assert!(!parse_driver(cut).version.contains('\0'));
        }
    }

    #[test]
    fn memory_holds_what_is_put_there_and_is_zero_otherwise() {
        let mut memory = Memory::new(5000).unwrap();
        memory.set_words(&[1, 2]);
        assert!(memory.bytes().len() >= 5000 && memory.bytes().len().is_multiple_of(PAGE));
        assert_eq!((word(memory.bytes(), 4), memory.bytes()[8..].iter().any(|b| *b != 0)), (2, false));
    }

    /// An answer longer than its memory is an error of the call. The description of a driver does
    /// not fit into eight bytes.
    #[test]
    fn the_kernel_cannot_write_beyond_the_memory() {
        let ethtool = Ethtool::open().unwrap();
        let answer = |device: &str| {
            let mut memory = Memory::new(1).unwrap();
            let mut all = vec![0; memory.length / 4];
            let end = all.len();
            all[end - 2] = DRIVER;
            memory.set_words(&all);
            let start = memory.start;
            memory.start = NonNull::new(start.as_ptr().wrapping_add(memory.length - 8)).unwrap();
            let answer = ethtool.call(device, &mut memory);
            memory.start = start;
            answer
        };
        for device in devices().iter().filter(|d| ethtool.driver(d).is_ok()) {
            assert_eq!(answer(device).unwrap_err().raw_os_error(), Some(libc::EFAULT), "{device}");
        }
    }

    fn devices() -> Vec<String> {
        let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten();
        entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
    }

    #[test]
    fn every_device_of_this_machine_answers_or_says_why_not() {
        let ethtool = Ethtool::open().unwrap();
        for device in devices() {
            let Ok(index) = ethtool.index(&device) else { continue };
            assert!(index > 0);
            match ethtool.stats(&device) {
                Ok(stats) => assert!(stats.iter().all(|(name, _)| !name.is_empty()), "{device}: {stats:?}"),
                Err(error) => assert_ne!(error.raw_os_error(), Some(libc::EFAULT), "{device}"),
            }
            if let Ok(driver) = ethtool.driver(&device) {
                assert!(!driver.name.is_empty(), "{device}");
            }
        }
        assert!(
            ethtool.stats("no-such-device").is_err() && ethtool.driver("a name that is too long").is_err()
        );
    }
}
