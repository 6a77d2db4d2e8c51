//! [`Stats`] counts what the daemon did.

use glebe::contig::Node;
use glebe::internal::stats::{openmetrics, shown, statistics, Set};
use glebe::internal::with_node_family;
use glebe::page_size;
use glebe::units::Bytes;

statistics! {
    labels {}
    counters {
        Leased leased Count "leases given";
        Ahead ahead Count "leases given from pages that were zeroed ahead";
        Released released Count "leases, promises and caches that their clients gave back";
        Left left Count "leases whose connection ended";
        Recalled recalled Count "revocable leases that clients were asked for";
        Revoked revoked Count "leases taken back while clients held them";
        Refused refused Count "requests refused by another reason than a limit";
        OverQuota over_quota Count "requests refused by a limit of the user or connection";
        CachePlaces cache_places Count "places of named caches that got memory";
        CacheTaken cache_taken Count "places of named caches whose memory was taken";
        Malformed malformed Count "connections ended for breaking the protocol";
        Unread unread Count "events dropped because the client reads none";
        Accepted accepted Count "connections accepted";
        NotAccepted not_accepted Count "times when no descriptor was left for a connection";
        Renewed renewed Pages "pages taken back from leases and zeroed";
        Added added Pages "pages added for leases";
        GivenBack given_back Pages "pages added for leases and given back when nobody used them";
        Lost lost Pages "pages that left the reserve, since another program took theirs";
    }
    gauges {
        held "held_pages" "pages that clients hold";
        promised "promised_pages" "pages promised";
        stock "stock_pages" "pages zeroed ahead";
        cached "cached_pages" "pages of named caches";
        grown "grown_pages" "pages added for leases, until they are given back";
        returning "returning_pages" "pages being taken back, replaced, or made into a lease";
    }
    durations {
        lease_ns "lease" "answer" "requests for leases and their refusals, in the daemon";
    }
}

const PREFIX: &str = "glebe_lease_";

impl Stats {
    /// Returns OpenMetrics 1.0 text, in seconds and bytes.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        openmetrics(PREFIX, page_size().bytes(), &[Set { labels: Vec::new(), rows: self.rows() }])
    }

    /// Returns OpenMetrics text with the bytes of the reserve on each of several NUMA nodes.
    pub(crate) fn openmetrics_on(&self, nodes: &[(Node, Bytes)]) -> String {
        with_node_family(self.to_openmetrics(), PREFIX, &[], nodes)
    }
}

shown!(Stats);
