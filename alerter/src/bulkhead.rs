//! Limits for requests that could delay others: requests with thousands of alerts and requests that
//! list everything have slots of their own, so that neither delays a person's answer.
//!
//! A request with a large body holds a place from its first byte, has a time limit for its body,
//! and waits for one of a few slots. Excess requests are answered at once with 503 and
//! `Retry-After`, and are counted. Prometheus sends an alert again within a minute.
//! Acknowledgements, silences, clicks and every other small request bypass these limits.
//!
//! The server limits the number of connections ([`stepwatch_kit::serve`]).

use core::time::Duration;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use futures_util::StreamExt as _;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::api::{MAX_ALERTS_BODY, MAX_WRITE_BODY, error_of};

/// The limits of one pool of requests.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The most requests in the pool, including those that wait.
    places: usize,
    /// The most requests that are processed at once.
    slots: usize,
    /// The most bytes of one body, and of all bodies that are being read or wait.
    body_bytes: usize,
    bodies_bytes: usize,
    /// The time limit for a body to arrive, and for a request to get a slot.
    body_within: Duration,
    slot_within: Duration,
}

/// The pool of requests with alerts.
const INGEST: Room = Room {
    places: 128,
    slots: 16,
    body_bytes: MAX_ALERTS_BODY,
    bodies_bytes: 4 * MAX_ALERTS_BODY,
    // Prometheus sends a request as one piece, and gives up after 10 s.
    body_within: Duration::from_secs(5),
    slot_within: Duration::from_secs(5),
};

/// The pool of remote write requests. As many are decoded at once as a small machine has cores; a
/// sender that gets a 503 keeps its samples.
const WRITES: Room =
    Room { places: 64, slots: 2, body_bytes: MAX_WRITE_BODY, bodies_bytes: 2 * MAX_WRITE_BODY, ..INGEST };

/// The pool of requests whose answer may be a list of everything.
const LISTS: Room =
    Room { places: 32, slots: 4, body_bytes: 1 << 20, slot_within: Duration::from_secs(10), ..INGEST };

/// The path of remote write, whose senders repeat a request forever after a 413.
pub(crate) const REMOTE_WRITE: &str = "/api/v1/write";

const LISTING: &[(Method, &str)] = &[
    (Method::GET, "/"),
    (Method::GET, "/runs"),
    (Method::GET, "/nodes"),
    (Method::GET, "/detectors"),
    (Method::GET, "/api/v1/incidents"),
    (Method::GET, "/api/v1/runs"),
    (Method::GET, "/api/v1/nodes"),
    (Method::GET, "/api/v1/sources"),
    (Method::GET, "/api/v1/silences"),
    (Method::POST, "/api/v1/silences/preview"),
    (Method::GET, "/api/v2/alerts"),
    (Method::GET, "/api/v2/alerts/groups"),
];

/// All pools. Clones share them.
#[derive(Debug, Clone)]
pub struct Bulkhead {
    ingest: Arc<Pool>,
    writes: Arc<Pool>,
    lists: Arc<Pool>,
    shed: Family<Shed, Counter>,
}

#[derive(Debug)]
struct Pool {
    name: &'static str,
    room: Room,
    places: Semaphore,
    slots: Arc<Semaphore>,
    /// The budget for bodies in KiB.
    bytes: Semaphore,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Shed {
    pool: &'static str,
    reason: &'static str,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Every place of the pool is taken.
    Full,
    /// The body did not arrive in time.
    SlowBody,
    /// No slot was free in time.
    Waited,
    TooLarge,
    /// The body was truncated.
    Broken,
}

impl Default for Bulkhead {
    fn default() -> Self {
        Self::with(INGEST, LISTS)
    }
}

impl Bulkhead {
    fn with(ingest: Room, lists: Room) -> Self {
        Self {
            ingest: Arc::new(Pool::new("ingest", ingest)),
            writes: Arc::new(Pool::new("remote_write", WRITES)),
            lists: Arc::new(Pool::new("lists", lists)),
            shed: Family::default(),
        }
    }

    /// Creates the pools and registers the counter of refused requests.
    pub fn registered(registry: &mut Registry, program: &str) -> Self {
        let bulkhead = Self::default();
        registry.register(
            format!("{program}_requests_shed"),
            "Requests answered 503 because others of their kind took the room: full (every place taken), slow_body, waited (no slot \
             in time)",
            bulkhead.shed.clone(),
        );
        bulkhead
    }

    /// Puts the pools in front of a router.
    pub fn before(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, pass))
    }

    fn pool(&self, method: &Method, path: &str) -> Option<&Pool> {
        if *method == Method::POST && path == "/api/v2/alerts" {
            return Some(&self.ingest);
        }
        if *method == Method::POST && path == REMOTE_WRITE {
            return Some(&self.writes);
        }
        LISTING.iter().any(|(m, p)| m == method && *p == path).then_some(&*self.lists)
    }
}

impl Pool {
    fn new(name: &'static str, room: Room) -> Self {
        let bytes = Semaphore::new(room.bodies_bytes >> 10);
        let (places, slots) = (Semaphore::new(room.places), Arc::new(Semaphore::new(room.slots)));
        Self { name, room, places, slots, bytes }
    }

    /// Reads the whole body before the slot is taken, so that a slow client does not hold a slot.
    async fn body(&self, request: Request) -> Result<(Request, Option<SemaphorePermit<'_>>), Refusal> {
        let until = Instant::now() + self.room.body_within;
        // The body of a GET request is not used.
        if request.method() == Method::GET {
            return Ok((request, None));
        }
        let declared = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
        let size: usize = match declared {
            Some(bytes) if bytes > self.room.body_bytes => return Err(Refusal::TooLarge),
            Some(bytes) => bytes,
            None => self.room.body_bytes,
        };
        if size == 0 {
            return Ok((request, None));
        }
        let share = self.bytes.acquire_many(size.div_ceil(1 << 10) as u32);
        let share = timeout_at(until, share).await.map_err(|_| Refusal::Waited)?.ok();
        let (parts, body) = request.into_parts();
        let read = timeout_at(until, to_bytes(body, self.room.body_bytes)).await;
        let body: Bytes = read.map_err(|_| Refusal::SlowBody)?.map_err(|_| Refusal::Broken)?;
        Ok((Request::from_parts(parts, Body::from(body)), share))
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let until = Instant::now() + self.room.slot_within;
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = timeout_at(until, slot).await.map_err(|_| Refusal::Waited)?;
        slot.map_err(|_| Refusal::Full)
    }

    async fn answer(&self, request: Request, next: Next) -> Result<Response, Refusal> {
        let _place = self.places.try_acquire().map_err(|_| Refusal::Full)?;
        let (request, _share) = self.body(request).await?;
        let slot = self.slot().await?;
        let response = next.run(request).await;
        if response.body().size_hint().exact().is_some() {
            return Ok(response);
        }
        // A response that is written while it is sent keeps its slot until the end.
        Ok(response.map(|body| Body::from_stream(body.into_data_stream().inspect(move |_| _ = &slot))))
    }
}

async fn pass(State(bulkhead): State<Bulkhead>, request: Request, next: Next) -> Response {
    let Some(pool) = bulkhead.pool(request.method(), request.uri().path()) else {
        return next.run(request).await;
    };
    let path = request.uri().path().to_owned();
    match pool.answer(request, next).await {
        Ok(response) => response,
        Err(refusal) => {
            if let Some(reason) = refusal.reason() {
                bulkhead.shed.get_or_create(&Shed { pool: pool.name, reason }).inc();
            }
            refusal.answer(&path)
        }
    }
}

impl Refusal {
    /// The metric label of a refusal for lack of room; `None` for a bad request.
    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Full => Some("full"),
            Self::SlowBody => Some("slow_body"),
            Self::Waited => Some("waited"),
            Self::TooLarge | Self::Broken => None,
        }
    }

    fn answer(self, path: &str) -> Response {
        let (status, why) = match self {
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "too many requests of this kind: ask again"),
            Self::SlowBody => (StatusCode::SERVICE_UNAVAILABLE, "the body took too long"),
            Self::Waited => {
                (StatusCode::SERVICE_UNAVAILABLE, "requests of this kind take too long: ask again")
            }
            Self::TooLarge if path == REMOTE_WRITE => (StatusCode::BAD_REQUEST, "the body is too large"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
            Self::Broken => (StatusCode::BAD_REQUEST, "the body does not arrive"),
        };
        let mut response = error_of(path, status, why);
        if self.reason().is_some() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // The rest of the body is not read.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use futures_util::stream;
    use tokio::sync::Notify;
    use tower::ServiceExt as _;

    use super::*;

    const FOR_EVER: Duration = Duration::from_hours(1);
    const SMALL: Room = Room {
        places: 3,
        slots: 1,
        body_bytes: 4096,
        bodies_bytes: 64 << 10,
        body_within: FOR_EVER,
        slot_within: FOR_EVER,
    };

    /// A service whose ingest route waits for a notification.
    fn service(ingest: Room) -> (Router, Bulkhead, Arc<Notify>) {
        let (go, bulkhead) = (Arc::new(Notify::new()), Bulkhead::with(ingest, SMALL));
        let waits = Arc::clone(&go);
        let take = post(async move |body: Bytes| {
            waits.notified().await;
            body.len().to_string()
        });
        let router = Router::new()
            .route("/api/v2/alerts", take)
            .route("/api/v1/incidents/{id}/ack", post(async || "acknowledged"))
            .route("/api/v1/incidents", get(async || "all"));
        (bulkhead.clone().before(router), bulkhead, go)
    }

    fn request(method: Method, path: &str, body: Body) -> Request {
        Request::builder().method(method).uri(path).body(body).unwrap()
    }

    /// A body that never ends.
    fn stuck() -> Body {
        Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>())
    }

    fn alerts(body: Body) -> Request {
        request(Method::POST, "/api/v2/alerts", body)
    }

    async fn ask(router: &Router, request: Request) -> (u16, bool) {
        let response = router.clone().oneshot(request).await.unwrap();
        (response.status().as_u16(), response.headers().contains_key(RETRY_AFTER))
    }

    fn send(router: &Router, request: Request) -> tokio::task::JoinHandle<(u16, bool)> {
        let router = router.clone();
        tokio::spawn(async move { ask(&router, request).await })
    }

    async fn taken(pool: &Pool, places: usize) {
        while pool.places.available_permits() + places > pool.room.places {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn bodies_that_do_not_arrive_take_no_room_from_an_acknowledgement() {
        let (router, bulkhead, go) = service(SMALL);
        let stuck: Vec<_> = (0..SMALL.places).map(|_| send(&router, alerts(stuck()))).collect();
        taken(&bulkhead.ingest, SMALL.places).await;
        assert_eq!(ask(&router, alerts(Body::from("x"))).await, (503, true));
        let ack = || request(Method::POST, "/api/v1/incidents/x/ack", Body::from("{}"));
        for _ in 0..2 * SMALL.places {
            assert_eq!(ask(&router, ack()).await, (200, false));
        }
        assert_eq!(
            ask(&router, request(Method::GET, "/api/v1/incidents", Body::empty())).await,
            (200, false)
        );
        let shed = Shed { pool: "ingest", reason: "full" };
        assert_eq!(bulkhead.shed.get_or_create(&shed).get(), 1);
        // The stuck requests are gone, and alerts are accepted again.
        for request in stuck {
            request.abort();
            let _ = request.await;
        }
        go.notify_one();
        assert_eq!(ask(&router, alerts(Body::from("x"))).await, (200, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_not_waited_for_and_nor_is_a_slot() {
        let (router, bulkhead, go) = service(Room { body_within: Duration::from_secs(5), ..SMALL });
        assert_eq!(ask(&router, alerts(stuck())).await, (503, true));
        assert_eq!(bulkhead.shed.get_or_create(&Shed { pool: "ingest", reason: "slow_body" }).get(), 1);
        let (router, bulkhead, _) = service(Room { slot_within: Duration::from_secs(5), ..SMALL });
        let works = send(&router, alerts(Body::from("x")));
        taken(&bulkhead.ingest, 1).await;
        while bulkhead.ingest.slots.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&router, alerts(Body::from("y"))).await, (503, true));
        assert_eq!(bulkhead.shed.get_or_create(&Shed { pool: "ingest", reason: "waited" }).get(), 1);
        works.abort();
        drop(go);
    }

    #[tokio::test]
    async fn what_is_written_while_it_is_sent_has_its_slot_until_then() {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(Some(ended)));
        let list = get(async move || {
            let ended = ended.lock().unwrap().take().unwrap();
            Body::from_stream(stream::once(async { ended.await.map(|()| Bytes::from("all")) }))
        });
        let bulkhead = Bulkhead::with(SMALL, SMALL);
        let router = bulkhead.clone().before(Router::new().route("/api/v1/incidents", list));
        let request = request(Method::GET, "/api/v1/incidents", Body::empty());
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(bulkhead.lists.slots.available_permits(), 0);
        end.send(()).unwrap();
        assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), "all");
        assert_eq!(bulkhead.lists.slots.available_permits(), SMALL.slots);
    }

    #[tokio::test]
    async fn a_refusal_is_in_the_words_of_whoever_serves_the_path() {
        let none = Room { places: 0, ..SMALL };
        let router = Bulkhead::with(none, none).before(Router::new());
        let body = async |request: Request| {
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let bytes = to_bytes(response.into_body(), 1000).await.unwrap();
            serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
        };
        let why = "too many requests of this kind: ask again";
        assert_eq!(body(alerts(Body::from("[]"))).await, why);
        assert_eq!(body(request(Method::GET, "/api/v1/incidents", Body::empty())).await["error"], why);
    }

    #[tokio::test]
    async fn the_body_arrives_whole_or_is_refused() {
        let (router, _, go) = service(SMALL);
        go.notify_one();
        let response = router.clone().oneshot(alerts(Body::from(vec![b'x'; 4096]))).await.unwrap();
        assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), "4096");
        let declared = |length: usize| {
            let mut request = alerts(Body::from(vec![b'x'; 5000]));
            request.headers_mut().insert(CONTENT_LENGTH, length.into());
            request
        };
        assert_eq!(ask(&router, declared(5000)).await, (413, false));
        assert_eq!(ask(&router, declared(10)).await, (400, false));
    }
}
