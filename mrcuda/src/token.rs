//! `mrcuda token`: the tokens of a server's users.

use crate::ask::print_json;
use crate::failure::Failure;
use crate::table::{Table, note, say, say_as_it_is};
use crate::time::date;
use rcuda_forwarder::{Token, TokensFile, UserToken};
use serde::Serialize;
use std::path::PathBuf;

/// Subcommands of `mrcuda token`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token for a user of this server, and print it
    #[command(after_help = crate::examples::TOKEN_ADD)]
    Add(ChangeArgs),
    /// List the users of this server who have a token
    #[command(after_help = crate::examples::TOKEN_LIST)]
    List(ListArgs),
    /// Remove a user's token: the user can start no more jobs; those that run go on until they end
    #[command(after_help = crate::examples::TOKEN_REVOKE)]
    Revoke(ChangeArgs),
}

/// Arguments of `mrcuda token add` and `mrcuda token revoke`.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangeArgs {
    /// Name of the user: 1 to 64 letters, digits, dots, dashes or underscores
    name: String,
    #[command(flatten)]
    file: FileArgs,
}

/// Arguments of `mrcuda token list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which file is meant.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// Tokens file of the server (mrcuda serve --tokens) [default: tokens beside the token file: ~/.config/mrcuda/tokens]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl FileArgs {
    fn tokens(&self) -> TokensFile {
        self.file.clone().map_or_else(|| TokensFile::beside(&Token::default_path()), TokensFile::new)
    }
}

/// A user as JSON (docs/servers.md), without the token.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Listed {
    name: String,
    added_unix_ms: u64,
    fingerprint: String,
}

impl From<UserToken> for Listed {
    fn from(user: UserToken) -> Listed {
        let fingerprint = user.token.fingerprint();
        Listed { name: user.name, added_unix_ms: user.added_unix_ms, fingerprint }
    }
}

/// Changes or lists the tokens of users.
pub(crate) fn token(command: &TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Add(args) => add(&args.file.tokens(), &args.name),
        TokenCommand::List(args) => list(&args.file.tokens(), args.json),
        TokenCommand::Revoke(args) => revoke(&args.file.tokens(), &args.name),
    }
}

/// Prints the token alone to stdout, for scripts, and what to do with it to stderr.
fn add(file: &TokensFile, name: &str) -> Result<(), Failure> {
    let user = file.add(name).map_err(Failure::new)?;
    note(&format!(
        "{} has a token for {name} now, which is printed once; its fingerprint is {}",
        file.path().display(),
        user.token.fingerprint()
    ));
    note(&format!("{name} puts it into ~/.config/mrcuda/token where jobs are started, readable by {name} only (chmod 600)"));
    say_as_it_is(&user.token.digits());
    Ok(())
}

fn list(file: &TokensFile, json: bool) -> Result<(), Failure> {
    let users: Vec<Listed> = file.users().map_err(Failure::new)?.into_iter().map(Listed::from).collect();
    if json {
        return print_json(&users);
    }
    if users.is_empty() {
        say(&format!("no user has a token in {}", file.path().display()));
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "ADDED", "FINGERPRINT"]);
    users.iter().for_each(|user| table.row(vec![user.name.clone(), date(user.added_unix_ms / 1000), user.fingerprint.clone()]));
    say(&table.render());
    Ok(())
}

fn revoke(file: &TokensFile, name: &str) -> Result<(), Failure> {
    let user = file.revoke(name).map_err(Failure::new)?;
    say(&format!(
        "the token of {name} ({}) is no longer accepted; jobs of {name} that run go on until they end",
        user.token.fingerprint()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_list_has_the_documented_fields_and_no_secret() {
        let dir = std::env::temp_dir().join(format!("mrcuda-token-list-{}", std::process::id()));
        let file = TokensFile::new(dir.join("tokens"));
        let user = file.add("ann").expect("a user");
        let digits = user.token.digits();
        let value = serde_json::to_value(Listed::from(user)).expect("JSON");
        std::fs::remove_dir_all(dir).expect("it was made");
        let page = include_str!("../../docs/servers.md");
        for name in value.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
        }
        assert_eq!(value["name"], Value::from("ann"));
        let fingerprint = value["fingerprint"].as_str().expect("text");
        assert!(fingerprint.len() == 16 && !digits.contains(fingerprint) && !value.to_string().contains(&digits));
    }
}
