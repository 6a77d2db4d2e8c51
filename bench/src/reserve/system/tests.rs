//! With commands that are over at once, on a small reserve.

use super::*;
use crate::reserve::map;
use glebe::units::Bytes;

fn report(command: Result<&str, &str>) -> serde_json::Value {
    let reserve = map(Bytes::mib(8), Reserve::builder()).unwrap();
    let mut tenant = Tenant::new(reserve.page_cache().pool("system").unwrap());
    tenant.fill(&reserve);
    let background = match command {
        Ok(command) => Background::new(Some(command), None, true).map(Arc::new),
        Err(why) => Err(why.to_owned()),
    };
    let mut report = Report::new("reserve", "", true);
    measure(&background, &reserve, &mut tenant, true, &mut report).unwrap();
    assert!(report.passed(), "{}", report.text());
    serde_json::from_str(&report.json()).unwrap()
}

fn row<'a>(report: &'a serde_json::Value, who: &str, unit: &str) -> &'a serde_json::Value {
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["who"] == who && row["unit"] == unit);
    row.unwrap_or_else(|| panic!("no row of {who} in {unit}: {report:#}"))
}

#[test]
fn each_arm_is_run_and_those_alone_ask_nothing() {
    let turns = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let report = report(Ok(turns));
    for arm in Arm::ALL {
        assert!(row(&report, arm.name(), "s cpu")["min"].as_f64().unwrap() > 0.01, "{report:#}");
        let asked = row(&report, arm.name(), "requests")["min"].as_f64().unwrap();
        assert_eq!(asked == 0.0, matches!(arm, Arm::Alone | Arm::AloneAgain), "{report:#}");
    }
    assert!(report["ratios"][KEPT].as_f64().unwrap() > 0.0, "{report:#}");
}

#[test]
fn a_background_that_fails_or_is_not_there_gives_no_figure() {
    let failed = report(Ok("exit 1"));
    assert_eq!(row(&failed, "glebe", "s")["note"], "no sample");
    let absent = report(Err("no cargo"));
    assert_eq!(row(&absent, "alone", "s")["note"], "no cargo");
    for report in [failed, absent] {
        assert!(report["ratios"][KEPT].is_null(), "{report:#}");
    }
}
