//! What the status says of replicas.

use super::*;

#[test]
fn the_status_says_who_leads_and_what_is_wrong_with_the_others() {
    let leader = |replicas, differing| {
        let address = "http://a:9766".to_owned();
        let leader = Some(LeaderView { address, epoch: 7, replicas, differing });
        let status: Status = serde_json::from_value(examples::status()).unwrap();
        text(|out| state::facts(&Status { leader, ..status }, Ts(OPENED), out))
    };
    let well = leader(3, 0);
    assert!(well.contains("http://a:9766 under lease 7; replicas: 3\n"), "{well}");
    let alone = leader(1, 0);
    assert!(alone.contains("replicas: 1, NOBODY COULD TAKE OVER\n"), "{alone}");
    assert!(leader(3, 1).contains("replicas: 3, 1 DIFFER\n"));
}
