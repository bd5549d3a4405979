package template

import (
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

// Names of the templates that every Set has.
const (
	ClaudeCode = "claude-code"
	Codex      = "codex"
	Shell      = "shell"
)

// builtins makes each template that every Set has.
func builtins() map[string]func(agentID string) (*Template, error) {
	all := map[string]func(string) (*Template, error){}
	for _, t := range []func() *Template{claudeCode, codex, shell} {
		all[t().Name] = func(string) (*Template, error) { return t(), nil }
	}
	return all
}

// aliases are other names of templates: numbers, as older clients have them.
var aliases = map[string]string{"1": ClaudeCode}

// What the agents remember of a conversation is kept in the synced directory, so that it
// goes where that goes. The images are public ones, which have the agent and a user of
// that name besides root. (Tried with claude 2.1 and codex 0.169, 2026-11.)
const (
	claudeHome = ".agent/claude"
	codexHome  = ".agent/codex"
	agentUser  = "agent"
)

// claudeCode is not run by root because it then refuses to run without questions.
// Releases differ in whether -c fails where there is nothing to go on with, so it is
// only given where there is.
func claudeCode() *Template {
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
			Setup:      setup(claudeHome),
		},
		Hooks: hooks.Default(),
	}
}

// codex reads the prompt from stdin, since its first argument may be the name of a
// command of its own. Its snapshots of the shell are off because they hold the
// environment, key included, in a file that would be synced.
func codex() *Template {
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
			Setup:      setup(codexHome),
		},
		Hooks: hooks.Default(),
	}
}

// setup makes the directory an agent's that root has made, and its home in it. Links are
// not followed: the files may be anybody's.
func setup(home string) [][]string {
	return [][]string{{"mkdir", "-p", "{dir}/" + home}, {"chown", "-Rh", "{user}", "{dir}"}}
}

func shell() *Template {
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
