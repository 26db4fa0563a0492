//! The state of the library in this process, and the way into it that every call takes: read the
//! script again if it has changed, count, and let go wrong what is to go wrong.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::SCRIPT;
use crate::calls::{self, Counters};
use crate::handles::{Answer, Device};
use crate::model::{Gpu, Table, gpus};
use crate::script::{Code, Effect, Number, Quantity, Script};

/// How often a call that hangs looks whether it may come back.
const LOOK: Duration = Duration::from_millis(1);

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// As the driver's own lock: one call has it, and others wait.
pub(crate) struct World {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// When this call came in, in seconds since the world began.
    now: f64,
    pub(crate) script: Script,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) counters: Counters,
    /// How often it was initialised and not shut down.
    open: u32,
    /// Handles are good for one.
    pub(crate) generation: u32,
    /// Indices of the GPUs that were there when it was initialised.
    pub(crate) listed: Vec<usize>,
    /// What the driver's library has open while it is in use, and what therefore keeps a GPU from
    /// being reset.
    device: Option<File>,
    reads: HashMap<(usize, String), u64>,
    pub(crate) samples: HashMap<usize, crate::api::gpm::Sample>,
    pub(crate) sets: HashMap<usize, crate::api::events::Set>,
    /// Addresses that were handed out and are good no more would be handed out again by an
    /// allocator.
    last_object: usize,
}

/// What of a file changes when its text does.
type Stamp = (u64, u64, i64, i64);

/// One GPU, or one MIG device of it.
pub(crate) struct View<'w> {
    pub(crate) world: &'w mut World,
    pub(crate) gpu: usize,
    pub(crate) instance: Option<usize>,
}

/// The world, locked.
pub(crate) struct Entered(MutexGuard<'static, Option<World>>);

impl Entered {
    pub(crate) fn world(&mut self) -> Answer<&mut World> {
        self.0.as_mut().ok_or(Code::DriverNotLoaded)
    }

    /// Closes everything once the library is not in use any more: it may be unloaded next, and what
    /// it holds then is lost for good.
    pub(crate) fn forget(&mut self) {
        if self.0.as_ref().is_some_and(|world| world.open == 0) {
            *self.0 = None;
        }
    }
}

fn lock() -> Entered {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    let path = || std::env::var_os(SCRIPT).map(PathBuf::from);
    match &mut *world {
        // A program that begins anew may have another script.
        Some(found) if found.open == 0 && path().as_ref() != Some(&found.path) => {
            *world = path().and_then(World::new)
        }
        Some(world) => world.refresh(),
        None => *world = path().and_then(World::new),
    }
    if let Some(world) = &mut *world {
        world.now = world.script.time.unwrap_or_else(|| world.counters.seconds());
    }
    Entered(world)
}

#[expect(clippy::disallowed_methods, reason = "a driver that is slow does nothing else")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// The world as it is now, for a call that was taken in and waits.
pub(crate) fn look() -> Entered {
    lock()
}

/// Takes a call in: comes back when it is its turn to be answered, or with what it fails with.
pub(crate) fn enter(call: &'static str, device: Option<Device>) -> Answer<Entered> {
    let gpu = device.and_then(Device::gpu);
    let (mut number, mut hanging, mut waited) = (None, false, false);
    loop {
        let mut entered = lock();
        let world = entered.world()?;
        let number =
            *number.get_or_insert_with(|| (world.counters.one(call), world.counters.one(calls::ALL)));
        let effect = world.effect(call, gpu, number);
        if effect != Some(Effect::Hang) && hanging {
            world.counters.count(calls::HANGING).fetch_sub(1, Ordering::Relaxed);
            hanging = false;
        }
        match effect {
            Some(Effect::Hang) => {
                if !hanging {
                    world.counters.one(calls::HANGING);
                    hanging = true;
                }
                drop(entered);
                pause(LOOK);
            }
            Some(Effect::DelayMs(ms)) if !waited => {
                drop(entered);
                pause(Duration::from_millis(ms));
                waited = true;
            }
            Some(Effect::Fail(code)) => return Err(code),
            Some(Effect::DelayMs(_)) | None => return Ok(entered),
        }
    }
}

impl World {
    fn new(path: PathBuf) -> Option<Self> {
        let counters = Counters::open(&path).ok()?;
        let mut world = Self {
            path,
            stamp: None,
            now: 0.0,
            script: Script::default(),
            gpus: Vec::new(),
            counters,
            open: 0,
            generation: 0,
            listed: Vec::new(),
            device: None,
            reads: HashMap::new(),
            samples: HashMap::new(),
            sets: HashMap::new(),
            last_object: 0,
        };
        world.refresh();
        Some(world)
    }

    /// Reads the script if it is not the one that was read last.
    fn refresh(&mut self) {
        if self.script.is_final {
            return;
        }
        let found = std::fs::metadata(&self.path);
        let stamp = found.ok().map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec()));
        if stamp.is_none() || stamp == self.stamp {
            return;
        }
        match read(&self.path) {
            Ok(script) => {
                self.gpus = gpus(&script);
                self.script = script;
                self.stamp = stamp;
            }
            // A file that is being written is whole a moment later.
            Err(error) => eprintln!("stand-in of NVML: {}: {error}", self.path.display()),
        }
    }

    /// What is to happen to a call, and how many of its function and of all functions it makes.
    fn effect(&self, call: &str, gpu: Option<usize>, (own, all): (u64, u64)) -> Option<Effect> {
        let due = |fault: &&crate::script::Fault| {
            let number = if fault.call == calls::ALL { all } else { own };
            fault.field.is_none() && fault.concerns(call, gpu) && fault.from.is_none_or(|from| number >= from)
        };
        self.script.faults.iter().find(due).map(|fault| fault.effect)
    }

    /// What is to happen to one field of one GPU.
    pub(crate) fn field_fault(&self, field: u32, gpu: usize) -> Option<Code> {
        let mut faults = self.script.faults.iter().filter(|f| f.field == Some(field));
        let fault = faults.find(|f| f.concerns(crate::api::FIELD_VALUES, Some(gpu)))?;
        match fault.effect {
            Effect::Fail(code) => Some(code),
            Effect::Hang | Effect::DelayMs(_) => None,
        }
    }

    pub(crate) fn init(&mut self) -> Answer {
        if self.open == 0 {
            let mut held = self.path.clone().into_os_string();
            held.push(".device");
            self.device = Some(File::create(held).map_err(|_| Code::NoPermission)?);
            // Kept with the counts: the library may be unloaded in between, and handles of before
            // must still be known as such.
            self.generation = self.counters.one(calls::GENERATION) as u32;
            self.listed = (0..self.gpus.len()).filter(|i| !self.script.fallen.contains(i)).collect();
        }
        self.open += 1;
        self.counters.one(calls::OPEN);
        Ok(())
    }

    pub(crate) fn shutdown(&mut self) -> Answer {
        self.ready()?;
        self.open -= 1;
        self.counters.count(calls::OPEN).fetch_sub(1, Ordering::Relaxed);
        if self.open == 0 {
            self.device = None;
        }
        Ok(())
    }

    /// Refuses what is asked of a library that is not initialised.
    pub(crate) fn ready(&mut self) -> Answer {
        if self.open > 0 { Ok(()) } else { self.misuse(Code::Uninitialized) }
    }

    pub(crate) fn misuse<T>(&mut self, code: Code) -> Answer<T> {
        self.counters.one(calls::MISUSE);
        Err(code)
    }

    /// A number for something that the program is to give back: never the same twice.
    pub(crate) fn object(&mut self) -> usize {
        self.last_object += 0x40;
        self.last_object
    }

    pub(crate) fn view(&mut self, device: Device) -> Answer<View<'_>> {
        self.ready()?;
        if !device.is_of(self.generation) {
            return self.misuse(Code::InvalidArgument);
        }
        let known = device.gpu().filter(|gpu| *gpu < self.gpus.len());
        let Some(gpu) = known else { return self.misuse(Code::InvalidArgument) };
        if self.is_lost(gpu) {
            return Err(Code::GpuIsLost);
        }
        let instance = device.instance();
        if instance.is_some_and(|i| i >= self.gpus[gpu].instances.len()) {
            return Err(Code::NotFound);
        }
        Ok(View { world: self, gpu, instance })
    }

    pub(crate) fn is_lost(&self, gpu: usize) -> bool {
        self.script.lost.contains(&gpu) || self.script.fallen.contains(&gpu)
    }

    /// A handle of the GPU at this place of the list.
    pub(crate) fn handle(&self, position: usize) -> Answer<Device> {
        let gpu = *self.listed.get(position).ok_or(Code::InvalidArgument)?;
        if self.is_lost(gpu) {
            return Err(Code::GpuIsLost);
        }
        if let Some(code) = self.script.unusable.get(&gpu) {
            return Err(*code);
        }
        Ok(Device::new(self.generation, gpu, None))
    }

    pub(crate) fn driver(&self) -> &str {
        self.script.driver.as_deref().unwrap_or(self.script.fleet.driver())
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.now
    }
}

fn read(path: &Path) -> Result<Script, String> {
    let text = std::fs::read(path).map_err(|e| e.to_string())?;
    serde_json::from_slice(&text).map_err(|e| e.to_string())
}

impl View<'_> {
    pub(crate) fn table(&self) -> &Table {
        let gpu = &self.world.gpus[self.gpu];
        self.instance.map_or(&gpu.values, |i| &gpu.instances[i].values)
    }

    fn quantity(&self, name: &str) -> Answer<&Quantity> {
        self.table().get(name).and_then(Option::as_ref).ok_or(Code::NotSupported)
    }

    pub(crate) fn number(&mut self, name: &str) -> Answer<Number> {
        let counts = matches!(self.quantity(name)?, Quantity::Growing { per_read, .. } if *per_read != 0.0);
        let reads = if counts {
            let reads = self.world.reads.entry((self.gpu, name.to_owned())).or_default();
            *reads += 1;
            *reads - 1
        } else {
            0
        };
        let seconds = self.world.seconds();
        self.quantity(name)?.number(seconds, reads).ok_or(Code::Unknown)
    }

    pub(crate) fn u64(&mut self, name: &str) -> Answer<u64> {
        Ok(self.number(name)?.unsigned())
    }

    pub(crate) fn u32(&mut self, name: &str) -> Answer<u32> {
        Ok(self.u64(name)? as u32)
    }

    pub(crate) fn i32(&mut self, name: &str) -> Answer<i32> {
        Ok(self.number(name)?.signed() as i32)
    }

    pub(crate) fn text(&self, name: &str) -> Answer<String> {
        match self.quantity(name)? {
            Quantity::Text(text) => Ok(text.clone()),
            _ => Err(Code::Unknown),
        }
    }

    /// The value of one NVLink: its own where the script has one for it.
    pub(crate) fn link(&mut self, name: &str, link: u32) -> Answer<Number> {
        if u64::from(link) >= self.u64("nvlink.links")? {
            return Err(Code::InvalidArgument);
        }
        let own = format!("nvlink.{name}.{link}");
        if self.table().contains_key(&own) {
            self.number(&own)
        } else {
            self.number(&format!("nvlink.{name}"))
        }
    }

    /// All links together.
    pub(crate) fn links(&mut self, name: &str) -> Answer<u64> {
        let links = self.u32("nvlink.links")?;
        (0..links).map(|link| Ok(self.link(name, link)?.unsigned())).sum()
    }

    /// Refuses what only a whole GPU is asked.
    pub(crate) fn whole(&self) -> Answer {
        if self.instance.is_none() { Ok(()) } else { Err(Code::NotSupported) }
    }
}
