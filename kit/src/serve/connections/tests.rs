use super::*;

fn client(text: &str) -> Client {
    Client::from_addresses(text.parse().unwrap(), [192, 0, 2, 1].into())
}

fn nth(n: u8) -> Client {
    Client::from_addresses([10, 0, 0, n].into(), [192, 0, 2, 1].into())
}

fn connections(limit: usize) -> Arc<Connections> {
    Connections::new(limit, 1 << 20, ServeMetrics::default())
}

/// A connection with a request that waits for its client or is being answered.
fn asking(connections: &Arc<Connections>, n: u8, waits: bool) -> (Arc<Seat>, Entered) {
    let seat = connections.admit(nth(n));
    let entered = seat.enter(false).unwrap();
    entered.waits_for_client(waits);
    (seat, entered)
}

#[test]
fn clients_are_counted_together_where_one_has_all_addresses() {
    assert_eq!(client("127.0.0.1"), client("127.9.9.9"));
    assert_eq!(client("127.0.0.1"), client("::1"));
    assert_eq!(client("10.0.0.1"), client("::ffff:10.0.0.1"));
    assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
    assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
    assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
}

#[test]
fn a_peer_with_our_own_address_is_this_machine() {
    assert_eq!(client("192.0.2.1"), client("127.0.0.1"));
    assert_eq!(client("::ffff:192.0.2.1"), client("127.0.0.1"));
    assert!(is_of_this_machine([127, 0, 0, 1].into()) && !is_of_this_machine([192, 0, 2, 1].into()));
    let six = "2001:db8::1".parse().unwrap();
    assert_eq!(Client::from_addresses(six, six), client("127.0.0.1"));
}

#[test]
fn a_newcomer_takes_the_place_of_what_was_active_longest_ago() {
    let connections = connections(3);
    let asked = connections.admit(nth(1));
    let silent = connections.admit(nth(1));
    drop(asked.enter(false));
    let busy = connections.admit(nth(1));
    let _request = busy.enter(false).unwrap();
    let _newcomer = connections.admit(nth(1));
    assert!(silent.cut.is_cancelled());
    assert!(!asked.cut.is_cancelled() && !busy.cut.is_cancelled());
    let next = connections.admit(nth(1));
    assert!(asked.cut.is_cancelled() && !next.cut.is_cancelled());
    drop((silent, asked));
    assert_eq!(connections.locked().by_id.len(), 3, "a place is freed once");
}

#[test]
fn the_idle_of_whoever_holds_most_go_first() {
    let connections = connections(3);
    let alone = connections.admit(nth(1));
    let many = [connections.admit(nth(2)), connections.admit(nth(2))];
    let _third = connections.admit(nth(3));
    assert!(many[0].cut.is_cancelled() && !many[1].cut.is_cancelled() && !alone.cut.is_cancelled());
}

#[test]
fn requests_that_wait_for_their_client_make_room_and_the_oldest_first() {
    let connections = connections(512);
    let held: Vec<_> = (0..512).map(|_| asking(&connections, 1, true)).collect();
    let cut = |n: usize| held[n].0.cut.is_cancelled();
    assert!((0..128).all(cut) && !cut(128), "as many as are kept free");
    let newcomer = connections.admit(nth(1));
    assert!(!cut(128), "a place is free for the head");
    let request = newcomer.enter(false).unwrap();
    assert!(cut(128) && !cut(129) && !newcomer.cut.is_cancelled());
    request.waits_for_client(true);
    let _later: Vec<_> = (0..300).map(|_| asking(&connections, 1, true)).collect();
    assert!(!newcomer.cut.is_cancelled(), "its turn comes after those that waited before");
}

#[test]
fn full_shares_of_four_clients_make_room_for_a_fifth() {
    let connections = connections(512);
    let _held: Vec<_> = (0..512).map(|i| asking(&connections, (i % 4) as u8, true)).collect();
    let fifth = connections.admit(nth(9));
    assert!(fifth.enter(false).is_some());
}

#[test]
fn whoever_is_answered_on_a_full_share_gives_one_up() {
    let connections = connections(64);
    let places = connections.places();
    let _held: Vec<_> = (0..places).map(|i| asking(&connections, (i / 16) as u8, false)).collect();
    let other = connections.admit(nth(9));
    assert!(other.enter(false).is_some(), "16 of 64 are a full share");
}

#[test]
fn of_many_clients_with_one_each_the_longest_waiting_makes_room() {
    let connections = connections(128);
    let held: Vec<_> = (0..connections.places()).map(|n| asking(&connections, n as u8, true)).collect();
    let newcomer = connections.admit(nth(200));
    assert!(newcomer.enter(false).is_some());
    assert!(held[0].0.cut.is_cancelled() && !held[1].0.cut.is_cancelled());
}

#[test]
fn a_client_with_more_requests_takes_no_place_of_one_with_fewer() {
    let connections = connections(4);
    let slow = asking(&connections, 1, true);
    let busy = [asking(&connections, 2, false), asking(&connections, 2, false)];
    let further = connections.admit(nth(2));
    assert!(further.enter(false).is_none());
    assert!(!slow.0.cut.is_cancelled() && !further.cut.is_cancelled());
    let third = connections.admit(nth(3));
    assert!(third.enter(false).is_some() && slow.0.cut.is_cancelled());
    assert!(!busy[0].0.cut.is_cancelled());
}

/// A connection with many requests that wait for their client or are being answered.
fn asking_at_once(connections: &Arc<Connections>, n: u8, waits: bool) -> (Arc<Seat>, Vec<Entered>) {
    let seat = connections.admit(nth(n));
    let entered: Vec<_> = (0..65).map(|_| seat.enter(false).unwrap()).collect();
    entered.iter().for_each(|e| e.waits_for_client(waits));
    (seat, entered)
}

#[test]
fn a_connection_whose_requests_all_wait_makes_room_for_a_further_one() {
    let connections = connections(512);
    let held: Vec<_> = (0..8).map(|_| asking_at_once(&connections, 1, true)).collect();
    let newcomer = connections.admit(nth(1));
    let (first, second) = (newcomer.enter(false), newcomer.enter(false));
    assert!(first.is_some() && second.is_some());
    assert!(held[0].0.cut.is_cancelled() && !held[1].0.cut.is_cancelled());
    assert!(!newcomer.cut.is_cancelled());
}

#[test]
fn requests_that_are_being_answered_are_bounded_and_not_broken_off() {
    let connections = connections(512);
    let held: Vec<_> = (0..8).map(|_| asking_at_once(&connections, 1, false)).collect();
    let newcomer = connections.admit(nth(2));
    let _first = newcomer.enter(false).unwrap();
    assert!(newcomer.enter(false).is_none() && newcomer.enter(true).is_some());
    assert!(held.iter().all(|(seat, _)| !seat.cut.is_cancelled()));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_waits_until_the_one_before_could_speak() {
    let connections = connections(2);
    let first = connections.admit(nth(1));
    assert_eq!(connections.pause(), Duration::ZERO, "there is room");
    tokio::time::advance(Duration::from_millis(10)).await;
    let second = connections.admit(nth(1));
    assert_eq!(connections.pause(), Duration::from_millis(40));
    tokio::time::advance(Duration::from_millis(40)).await;
    assert_eq!(connections.pause(), LOOK_AGAIN, "nobody has looked what it says");
    second.busy.was_heard();
    assert_eq!(connections.pause(), Duration::from_millis(10), "the second has nothing to say");
    first.busy.was_heard();
    assert_eq!(connections.pause(), Duration::ZERO);
    let _third = connections.admit(nth(1));
    assert_eq!(connections.pause(), Duration::from_millis(10), "the second is the oldest now");
}

#[tokio::test(start_paused = true)]
async fn where_all_places_are_taken_connections_are_let_in_at_an_even_pace() {
    let connections = connections(100);
    let mut held: Vec<_> = (0..100).map(|_| connections.admit(nth(1))).collect();
    held.iter().for_each(|seat| seat.busy.was_heard());
    tokio::time::advance(FIRST_WORD).await;
    // All of them have had their time, but the next ones are not accepted all at once.
    let began = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..100 {
        let pause = connections.pause();
        pauses.push(pause);
        tokio::time::advance(pause).await;
        held.push(connections.admit(nth(1)));
        held[held.len() - 1].busy.was_heard();
    }
    assert!(pauses.iter().all(|pause| *pause <= 2 * AHEAD), "{pauses:?}");
    assert!(began.elapsed() + 2 * AHEAD >= FIRST_WORD, "{:?}", began.elapsed());
}

#[test]
fn answers_that_are_left_unread_make_room_for_others_and_the_oldest_of_most_first() {
    let connections = connections(512);
    let held: Vec<_> = (0..8).map(|_| asking(&connections, 1, true)).collect();
    let other = asking(&connections, 2, true);
    other.1.answers(100 << 10);
    held.iter().for_each(|(_, entered)| entered.answers(100 << 10));
    let cut = |n: usize| held[n].0.cut.is_cancelled();
    assert!(!cut(0));
    let next = asking(&connections, 1, false);
    next.1.answers(300 << 10);
    assert!(cut(0) && cut(1) && !cut(2) && !other.0.cut.is_cancelled());
    next.1.sent(300 << 10);
    held[2].1.answers(100 << 10);
    assert!(!cut(3), "what was sent takes no room");
    next.1.answers(64 << 20);
    assert!(cut(7) && other.0.cut.is_cancelled(), "one alone may be larger than that");
    assert!(!next.0.cut.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn who_sends_more_than_is_read_keeps_nobody_waiting_for_long() {
    let connections = connections(1);
    let _unread = connections.admit(nth(1));
    tokio::time::advance(HEARD_AT_LAST.saturating_sub(LOOK_AGAIN)).await;
    assert_eq!(connections.pause(), LOOK_AGAIN);
    tokio::time::advance(LOOK_AGAIN).await;
    assert_eq!(connections.pause(), Duration::ZERO);
}

#[test]
fn a_probe_is_answered_while_every_place_is_taken() {
    let connections = connections(64);
    let held: Vec<_> = (0..connections.places()).map(|_| asking(&connections, 1, false)).collect();
    for _ in 0..100 {
        let probe = connections.admit(nth(1));
        assert!(probe.enter(false).is_none(), "one's own are not exchanged");
        assert!(probe.enter(true).is_some());
    }
    assert!(held.iter().all(|(seat, _)| !seat.cut.is_cancelled()));
}

#[test]
fn each_user_of_this_machine_is_a_client_and_nobody_elsewhere_is_several() {
    let (here, there) = (client("127.0.0.1"), client("10.0.0.7"));
    assert_ne!(here.of_user(|| Some(1)), here.of_user(|| Some(2)));
    assert_eq!(here.of_user(|| None), here);
    assert_eq!(there.of_user(|| Some(1)), there);
    assert_eq!(here.of_user(|| Some(1)).to_string(), "127.0.0.1 (uid 1)");
    let stored = serde_json::to_string(&here.of_user(|| Some(1))).unwrap();
    assert_eq!((stored.as_str(), serde_json::from_str::<Client>(&stored).unwrap()), ("\"127.0.0.1\"", here));
}
