package mcpconfig

import (
	"runtime"
	"strings"
	"testing"
)

var entry = Entry{"/opt/atoll", []string{"mcp", "--workspace", "."}}

func findClient(t *testing.T, name string) *Client {
	t.Helper()
	c, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The entry is added in the style of the file, and its removal restores the file.
func TestAddAndRemove(t *testing.T) {
	const inner = `"command": "/opt/atoll",`
	for _, tt := range []struct{ client, name, before, want string }{
		{"cursor", "empty object", "{}\n", "{\n  \"mcpServers\": {\n    \"atoll\": {\n      \"command\": \"/opt/atoll\",\n      \"args\": [\n        \"mcp\",\n        \"--workspace\",\n        \".\"\n      ]\n    }\n  }\n}\n"},
		{"cursor", "no table", "{\n  \"a\": 1\n}\n", "{\n  \"a\": 1,\n  \"mcpServers\": {\n    \"atoll\": {\n      " + inner},
		{"cursor", "other server", "{\n\t\"mcpServers\": {\n\t\t\"x\": {\"command\": \"x\"}\n\t},\n\t\"z\": [1, 2]\n}", "\t\t\"x\": {\"command\": \"x\"},\n\t\t\"atoll\": {\n\t\t\t" + inner},
		{"cursor", "no indent", `{"mcpServers":{"x":{"command":"x"}},"b":2}`, `"x":{"command":"x"},` + "\n  \"atoll\": {\n    " + inner},
		{"gemini", "empty table", "{\n    \"a\": true,\n    \"mcpServers\": {},\n    \"b\": null\n}\n", "\"mcpServers\": {\n        \"atoll\": {\n            " + inner},
		{"vscode", "comments", "// top\n{\n  // servers\n  \"servers\": {\n    \"x\": {\"command\": \"x\"} // one\n    // two\n  } /* three */\n  // end\n}\n", "\"x\": {\"command\": \"x\"}, // one\n    // two\n    \"atoll\": {\n      \"type\": \"stdio\",\n      " + inner},
		{"vscode", "CRLF", "{\r\n  \"inputs\": [],\r\n  \"servers\": {\r\n    \"x\": {}\r\n  }\r\n}\r\n", "\"x\": {},\r\n    \"atoll\": {\r\n      \"type\": \"stdio\",\r\n      " + inner},
		{"zed", "trailing commas", "{\n  \"theme\": \"One\", // mine\n  \"context_servers\": {\n    \"x\": {\n      \"command\": \"x\",\n    },\n  },\n}\n", "    },\n    \"atoll\": {\n      " + inner},
		{"zed", "comments only", "// Zed settings\n{\n  // nothing yet\n}\n", "  // nothing yet\n  \"context_servers\": {\n    \"atoll\": {\n      " + inner},
		{"claude", "state", "{\n  \"numStartups\": 12345678901234567890,\n  \"projects\": {\"/src\": {\"mcpServers\": {\"atoll\": {\"command\": \"other\"}}}}\n}", "\"numStartups\": 12345678901234567890,"},
		{"cursor", "BOM", "\ufeff{\n  \"a\": 1\n}\n", "\ufeff{\n  \"a\": 1,\n  \"mcpServers\""},
		{"codex", "empty file", "", "[mcp_servers.atoll]\ncommand = '/opt/atoll'\nargs = ['mcp', '--workspace', '.']\n"},
		{"codex", "other tables", "model = \"x\" # mine\n\n[mcp_servers.x]\ncommand = \"x\"\n\n[mcp_servers.x.env]\nA = \"1\"\n", "A = \"1\"\n\n[mcp_servers.atoll]\ncommand = '/opt/atoll'\n"},
		{"codex", "CRLF", "model = \"x\"\r\n", "model = \"x\"\r\n\r\n[mcp_servers.atoll]\r\ncommand = '/opt/atoll'\r\n"},
	} {
		c := findClient(t, tt.client)
		added, err := c.Add([]byte(tt.before), entry)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !strings.Contains(string(added), tt.want) {
			t.Errorf("%s: the file is\n%s\nwant in it\n%s", tt.name, added, tt.want)
		}
		again, err := c.Add(added, entry)
		if err != nil || string(again) != string(added) {
			t.Errorf("%s, added twice: %v\n%s", tt.name, err, again)
		}
		other := Entry{`C:\bin\atoll.exe`, []string{"mcp", "--network", "on"}}
		changed, err := c.Add(added, other)
		if err != nil || !strings.Contains(string(changed), "network") || strings.Contains(string(changed), "/opt/atoll") {
			t.Errorf("%s, changed: %v\n%s", tt.name, err, changed)
		}
		for _, text := range [][]byte{added, changed} {
			rest, found, err := c.Remove(text)
			want := tt.before
			switch tt.name {
			case "empty table":
				want = strings.Replace(want, "    \"mcpServers\": {},\n", "", 1)
			case "no indent":
				want = strings.Replace(want, "}}", "}\n}", 1)
			}
			if err != nil || !found || string(rest) != want {
				t.Errorf("%s, removed: %v, %v\n%q\nwant\n%q", tt.name, found, err, rest, want)
			}
		}
		if rest, found, err := c.Remove([]byte(tt.before)); err != nil || found || string(rest) != tt.before && len(tt.before) > 0 {
			t.Errorf("%s, removed from a file without it: %v, %v\n%s", tt.name, found, err, rest)
		}
	}
}

// The entry may be between others.
func TestRemoveBetween(t *testing.T) {
	for _, tt := range []struct{ client, before, want string }{
		{"cursor", `{"mcpServers": {"atoll": {"command": "atoll", "args": ["mcp"]}, "x": {}}}`, `{"mcpServers": { "x": {}}}`},
		{"cursor", "{\n \"mcpServers\": {\n  \"a\": {},\n  \"atoll\": {\"command\": \"atoll\", \"args\": [\"mcp\"]}, // ours\n  \"b\": {}\n }\n}", "{\n \"mcpServers\": {\n  \"a\": {},\n   // ours\n  \"b\": {}\n }\n}"},
		{"cursor", "{\n \"mcpServers\": {\n  // why\n  \"atoll\": {\"command\": \"atoll\", \"args\": [\"mcp\"]}\n }\n}", "{\n \"mcpServers\": {\n  // why\n }\n}"},
		{"codex", "[mcp_servers.atoll]\ncommand = \"atoll\"\nargs = [\"mcp\"]\n\n[mcp_servers.\"atoll\".env]\nA = \"1\"\n\n# mine\n[x]\na = 1\n", "\n# mine\n[x]\na = 1\n"},
	} {
		rest, found, err := findClient(t, tt.client).Remove([]byte(tt.before))
		if err != nil || !found || string(rest) != tt.want {
			t.Errorf("%s: %v, %v\n%q\nwant\n%q", tt.before, found, err, rest, tt.want)
		}
	}
}

// Files that cannot be edited are errors.
func TestErrors(t *testing.T) {
	for _, tt := range []struct{ client, text, words string }{
		{"cursor", "{\n  \"a\": \n}", "not valid JSON"},
		{"cursor", "[]", "not a JSON object"},
		{"cursor", `{"mcpServers": []}`, "mcpServers is not an object"},
		{"cursor", `{"mcpServers": {"atoll": 1}}`, "mcpServers.atoll is not an object"},
		{"cursor", `{"mcpServers": {"atoll": {"command": "npx", "args": ["atoll-other"]}}}`, `runs "npx atoll-other", which is not atoll mcp`},
		{"cursor", `{"mcpServers": {"atoll": {"url": "http://x"}}}`, "which is not atoll mcp"},
		{"codex", "a = \n", "not valid TOML: line 1"},
		{"codex", "[mcp_servers.atoll]\ncommand = \"x\"\n", `runs "x"`},
		{"codex", "[mcp_servers]\natoll = {command = \"atoll\", args = [\"mcp\"]}\n", "edit the file yourself"},
		{"codex", "mcp_servers = 1\n", "not a table"},
	} {
		c := findClient(t, tt.client)
		if out, err := c.Add([]byte(tt.text), entry); err == nil || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("Add to %q: %q, %v; want %q", tt.text, out, err, tt.words)
		}
		if out, _, err := c.Remove([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("Remove from %q: %q, %v; want %q", tt.text, out, err, tt.words)
		}
	}
	if _, err := Find("emacs"); err == nil || !strings.Contains(err.Error(), "claude, codex, cursor, gemini, vscode, zed") {
		t.Errorf("Find: %v", err)
	}
}

// The list of denied tools gets a name once, and loses it.
func TestDeny(t *testing.T) {
	for _, tt := range []struct{ before, want string }{
		{"", "{\n  \"permissions\": {\n    \"deny\": [\n      \"Bash\"\n    ]\n  }\n}\n"},
		{"{\n  // mine\n  \"permissions\": {\n    \"allow\": [\"Read\"],\n    \"deny\": [\"WebFetch\"] // no web\n  }\n}\n", "\"deny\": [\n      \"WebFetch\",\n      \"Bash\"\n    ] // no web"},
	} {
		added, err := Deny([]byte(tt.before), "Bash", true)
		if err != nil || !strings.Contains(string(added), tt.want) {
			t.Errorf("%q: %v\n%s", tt.before, err, added)
		}
		if again, err := Deny(added, "Bash", true); err != nil || string(again) != string(added) {
			t.Errorf("%q, twice: %v\n%s", tt.before, err, again)
		}
		rest, err := Deny(added, "Bash", false)
		if err != nil || strings.Contains(string(rest), "Bash") || strings.Contains(tt.before, "WebFetch") != strings.Contains(string(rest), "WebFetch") {
			t.Errorf("%q, removed: %v\n%s", tt.before, err, rest)
		}
	}
	if _, err := Deny([]byte(`{"permissions": {"deny": "Bash"}}`), "Bash", true); err == nil || !strings.Contains(err.Error(), "permissions.deny is not a list") {
		t.Errorf("a deny that is no list: %v", err)
	}
}

// Each client looks for its own file.
func TestFiles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have other paths")
	}
	dirs := DirsOf([]string{"HOME=/h"})
	for name, want := range map[string][2]string{
		"claude": {"/h/.claude.json", "/p/.mcp.json"}, "codex": {"/h/.codex/config.toml", "/p/.codex/config.toml"},
		"cursor": {"/h/.cursor/mcp.json", "/p/.cursor/mcp.json"}, "gemini": {"/h/.gemini/settings.json", "/p/.gemini/settings.json"},
		"vscode": {"/h/.config/Code/User/mcp.json", "/p/.vscode/mcp.json"}, "zed": {"/h/.config/zed/settings.json", "/p/.zed/settings.json"},
	} {
		c := findClient(t, name)
		if got := [2]string{c.File(dirs, ""), c.File(dirs, "/p")}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	dirs = DirsOf([]string{"HOME=/h", "XDG_CONFIG_HOME=/x", "CODEX_HOME=/c", "CLAUDE_CONFIG_DIR=/l"})
	if got := findClient(t, "zed").File(dirs, "") + " " + findClient(t, "codex").File(dirs, ""); got != "/x/zed/settings.json /c/config.toml" {
		t.Errorf("with variables: %s", got)
	}
	if got := findClient(t, "claude").File(dirs, "") + " " + DenyFile(dirs, "") + " " + DenyFile(dirs, "/p"); got != "/l/.claude.json /l/settings.json /p/.claude/settings.json" {
		t.Errorf("claude with a directory of its own: %s", got)
	}
}
