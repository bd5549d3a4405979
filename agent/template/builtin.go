package template

import (
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

// Names of the built-in templates.
const (
	ClaudeCode = "claude-code"
	Codex      = "codex"
	Shell      = "shell"
)

// builtinTemplates returns the functions that make the built-in templates, by name.
func builtinTemplates() map[string]func(agentID string) (*Template, error) {
	all := map[string]func(string) (*Template, error){}
	for _, t := range []func() *Template{newClaudeCode, newCodex, newShell} {
		all[t().Name] = func(string) (*Template, error) { return t(), nil }
	}
	return all
}

// aliases maps other names of templates: numbers, which older clients use.
var aliases = map[string]string{"1": ClaudeCode}

// The agents keep their own memory of a conversation in the synced directory, so that
// it moves with the files. The public images contain the agent and a user of this name
// besides root. (Tested with claude 2.1 and codex 0.169, 2026-11.)
const (
	claudeHome = ".agent/claude"
	codexHome  = ".agent/codex"
	agentUser  = "agent"
)

// newClaudeCode doesn't run the agent as root, since it then insists on asking for
// permissions. Some releases fail if -c finds no conversation, so -c is only passed if
// there is one.
func newClaudeCode() *Template {
	key, _ := NewSecret("env:ANTHROPIC_API_KEY", false)
	return &Template{
		Name:       ClaudeCode,
		Doc:        "Claude Code, with the key in ANTHROPIC_API_KEY",
		Spec:       atoll.Spec{Image: "docker/sandbox-templates:claude-code", Network: atoll.Network{Mode: atoll.NetworkOn}},
		InitFromS3: true,
		Agent: Agent{
			Command:    []string{"claude", "--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json", continueWord, "-p", promptWord},
			Continue:   []string{"-c"},
			ContinueIf: claudeHome + "/projects",
			Format:     FormatClaude,
			User:       agentUser,
			Env:        []string{"CLAUDE_CONFIG_DIR={dir}/" + claudeHome, "DISABLE_AUTOUPDATER=1"},
			Secrets:    map[string]Secret{"ANTHROPIC_API_KEY": key},
			TTY:        true,
			Timeout:    atoll.Duration(time.Hour),
			Setup:      setupCommands(claudeHome),
		},
		Hooks: hooks.Default(),
	}
}

// newCodex passes the prompt on stdin, since a first argument might be parsed as a
// subcommand. It disables shell snapshots: they write the environment, including the
// key, to a file that would be synced.
func newCodex() *Template {
	key, _ := NewSecret("env:CODEX_API_KEY", false)
	return &Template{
		Name:       Codex,
		Doc:        "Codex, with the key of OpenAI's API in CODEX_API_KEY",
		Spec:       atoll.Spec{Image: "docker/sandbox-templates:codex", Network: atoll.Network{Mode: atoll.NetworkOn}},
		InitFromS3: true,
		Agent: Agent{
			Command:    []string{"codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--disable", "shell_snapshot", continueWord, "-"},
			Continue:   []string{"resume", "--last"},
			ContinueIf: codexHome + "/sessions",
			Stdin:      true,
			Format:     FormatCodex,
			User:       agentUser,
			Env:        []string{"CODEX_HOME={dir}/" + codexHome},
			Secrets:    map[string]Secret{"CODEX_API_KEY": key},
			Timeout:    atoll.Duration(time.Hour),
			Setup:      setupCommands(codexHome),
		},
		Hooks: hooks.Default(),
	}
}

// setupCommands returns commands that create the agent's home below the directory, and
// make the directory the agent's. They follow no links, since anybody may have made the
// files.
func setupCommands(home string) [][]string {
	return [][]string{{"mkdir", "-p", "{dir}/" + home}, {"chown", "-Rh", "{user}", "{dir}"}}
}

func newShell() *Template {
	return &Template{
		Name:       Shell,
		Doc:        "a shell that runs each prompt as a script, to try things without a model",
		InitFromS3: true,
		Agent: Agent{
			Command: []string{"sh", "-c", promptWord},
			Format:  FormatText,
			Timeout: atoll.Duration(10 * time.Minute),
		},
		Hooks: hooks.Default(),
	}
}
