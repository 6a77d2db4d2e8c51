//! Statistics: striped counters, latency histograms, and tables that print as text and JSON.
