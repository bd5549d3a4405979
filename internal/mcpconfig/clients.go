// Package mcpconfig adds programs that serve MCP to the settings of coding agents, and removes them. It
// changes only what it adds: comments, order, line ends, modes and symbolic links of the files remain.
package mcpconfig

import (
	"cmp"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// An Entry is a program that a coding agent starts, and talks to on its stdin and stdout.
type Entry struct {
	Command string   `json:"command" toml:"command"`
	Args    []string `json:"args" toml:"args"`
}

// A Client is a coding agent.
type Client struct {
	Name  string // as users name it
	Title string
	// Workspace is the argument by which the client names the directory of a project; "" if it needs the
	// absolute path.
	Workspace string

	table   string // the key of the table of programs
	stdio   bool   // entries have a type
	project string // the file in the directory of a project
	user    func(dirs Dirs) string
}

// Dirs are the directories below which the files of users are.
type Dirs struct {
	Home   string
	Config string // XDG_CONFIG_HOME; "" means .config in Home
	App    string // APPDATA of Windows
	Codex  string // CODEX_HOME; "" means .codex in Home
	Claude string // CLAUDE_CONFIG_DIR; "" means Home, and .claude in it
}

// DirsOf returns the directories in an environment of "KEY=value" pairs.
func DirsOf(env []string) Dirs {
	get := func(name string) (value string) {
		for _, kv := range env {
			if rest, ok := strings.CutPrefix(kv, name+"="); ok {
				value = rest
			}
		}
		return value
	}
	d := Dirs{Home: get("HOME"), Config: get("XDG_CONFIG_HOME"), App: get("APPDATA"), Codex: get("CODEX_HOME"), Claude: get("CLAUDE_CONFIG_DIR")}
	if runtime.GOOS == "windows" {
		d.Home = get("USERPROFILE")
	}
	if d.Config == "" {
		d.Config = filepath.Join(d.Home, ".config")
	}
	if d.Codex == "" {
		d.Codex = filepath.Join(d.Home, ".codex")
	}
	return d
}

// appDir returns the directory of an application's settings.
func appDir(d Dirs, name string) string {
	switch runtime.GOOS {
	case "windows":
		return filepath.Join(d.App, name)
	case "darwin":
		return filepath.Join(d.Home, "Library", "Application Support", name)
	}
	return filepath.Join(d.Config, name)
}

var clients = []Client{
	{Name: "claude", Title: "Claude Code", Workspace: ".", table: "mcpServers", stdio: true, project: ".mcp.json",
		user: func(d Dirs) string { return filepath.Join(cmp.Or(d.Claude, d.Home), ".claude.json") }},
	{Name: "codex", Title: "Codex", table: "mcp_servers", project: ".codex/config.toml",
		user: func(d Dirs) string { return filepath.Join(d.Codex, "config.toml") }},
	{Name: "cursor", Title: "Cursor", Workspace: "${workspaceFolder}", table: "mcpServers", project: ".cursor/mcp.json",
		user: func(d Dirs) string { return filepath.Join(d.Home, ".cursor", "mcp.json") }},
	{Name: "gemini", Title: "Gemini CLI", table: "mcpServers", project: ".gemini/settings.json",
		user: func(d Dirs) string { return filepath.Join(d.Home, ".gemini", "settings.json") }},
	{Name: "vscode", Title: "VS Code", Workspace: "${workspaceFolder}", table: "servers", stdio: true, project: ".vscode/mcp.json",
		user: func(d Dirs) string { return filepath.Join(appDir(d, "Code"), "User", "mcp.json") }},
	{Name: "zed", Title: "Zed", table: "context_servers", project: ".zed/settings.json",
		user: func(d Dirs) string {
			if runtime.GOOS == "windows" {
				return filepath.Join(d.App, "Zed", "settings.json")
			}
			return filepath.Join(d.Config, "zed", "settings.json")
		}},
}

// Names returns the names of the clients.
func Names() (names []string) {
	for _, c := range clients {
		names = append(names, c.Name)
	}
	return names
}

// Find returns a client by name.
func Find(name string) (*Client, error) {
	i := slices.IndexFunc(clients, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown client %q: use %s", name, strings.Join(Names(), ", "))
	}
	c := clients[i]
	return &c, nil
}

// File returns the file with the client's programs: that of the project in a directory, or if that is "",
// that of the user.
func (c *Client) File(dirs Dirs, project string) string {
	if project != "" {
		return filepath.Join(project, filepath.FromSlash(c.project))
	}
	return c.user(dirs)
}

// serverName is the name of the entry.
const serverName = "atoll"

// isOurs reports whether an entry runs the MCP server of Atoll.
func (e Entry) isOurs() bool {
	name := e.Command[strings.LastIndexAny(e.Command, `/\`)+1:]
	return strings.TrimSuffix(name, ".exe") == "atoll" && len(e.Args) > 0 && e.Args[0] == "mcp"
}

// foreignError returns the error for an entry of our name that runs another program.
func (e Entry) foreignError() error {
	return fmt.Errorf("the entry %s runs %q, which is not atoll mcp: rename or remove it first", serverName, strings.Join(append([]string{e.Command}, e.Args...), " "))
}

// Text returns the settings of a file that has only the entry.
func (c *Client) Text(e Entry) string {
	data, err := c.Add(nil, e)
	if err != nil {
		panic(err) // nothing is in the way
	}
	return string(data)
}

// Add returns the content of the client's file with the entry added, or changed if the file has one of
// atoll mcp.
func (c *Client) Add(data []byte, e Entry) ([]byte, error) {
	if c.isTOML() {
		return addTOML(data, c.table, e)
	}
	var value any = e
	if c.stdio {
		value = struct {
			Type string `json:"type"`
			Entry
		}{"stdio", e}
	}
	return editJSON(data, []string{c.table, serverName}, func(old *Entry) (any, error) {
		if old != nil && !old.isOurs() {
			return nil, old.foreignError()
		}
		return value, nil
	})
}

// Remove returns the content of the client's file without the entry, and whether it had one. It removes
// only an entry of atoll mcp.
func (c *Client) Remove(data []byte) (rest []byte, found bool, err error) {
	if c.isTOML() {
		return removeTOML(data, c.table)
	}
	rest, err = editJSON(data, []string{c.table, serverName}, func(old *Entry) (any, error) {
		found = old != nil
		if found && !old.isOurs() {
			return nil, old.foreignError()
		}
		return nil, nil
	})
	return rest, found, err
}

func (c *Client) isTOML() bool { return strings.HasSuffix(c.project, ".toml") }
