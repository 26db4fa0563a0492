//! Stores the last accepted targets of lists.

use std::collections::BTreeMap;

use super::error::Result;
use super::handle::Store;
use super::sql::{QueryBuilder, query, query_as};
use super::writer::Who;

impl Store {
    /// The stored addresses by list.
    pub(crate) async fn target_lists(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let sql = "SELECT list, targets FROM target_lists";
        let rows: Vec<(String, String)> = query_as(sql).fetch_all(&*self.reader()?).await?;
        let lines = |text: String| text.lines().map(str::to_owned).collect();
        Ok(rows.into_iter().map(|(list, targets)| (list, lines(targets))).collect())
    }

    /// Stores the addresses of a list.
    pub(crate) async fn keep_target_list(&self, list: &str, targets: &[&str]) -> Result<()> {
        let sql = "INSERT INTO target_lists (list, targets) VALUES ($1, $2) \
                   ON CONFLICT (list) DO UPDATE SET targets = excluded.targets";
        let text = targets.join("\n");
        self.write(Who::InTurn, async |tx| {
            query(sql).bind(list).bind(text).execute(tx).await?;
            Ok(())
        })
        .await
    }

    /// Deletes the lists that are no longer configured.
    pub(crate) async fn forget_target_lists_but(&self, lists: &[String]) -> Result<()> {
        self.write(Who::InTurn, async |tx| {
            let mut delete = QueryBuilder::new("DELETE FROM target_lists WHERE list NOT IN (''");
            for list in lists {
                delete.push(", ").push_bind(list);
            }
            delete.push(")").build().execute(tx).await?;
            Ok(())
        })
        .await
    }
}
