// Package recipe describes coding agents: how to install one, start it without questions, and what it needs of the network and of
// its home directory. Atoll has recipes for known agents; users add their own as YAML files.
package recipe

import (
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A Recipe describes one agent.
type Recipe struct {
	Name    string  `yaml:"name"`
	Title   string  `yaml:"title"`
	About   string  `yaml:"about"`
	Install Install `yaml:"install"`
	// Exec is the name of the agent's program.
	Exec string `yaml:"command"`
	// Args are arguments for every start, in place of ${ARGS} in the four lists below. An argument with ${PROMPT} is left out if
	// there is no prompt, and so is a -- before it.
	Args           []string `yaml:"args"`
	Interactive    []string `yaml:"interactive"`
	Headless       []string `yaml:"headless"`        // it ends after one prompt
	Resume         []string `yaml:"resume"`          // interactive, with the last conversation in the work directory
	ResumeHeadless []string `yaml:"resume_headless"` // one prompt more in that conversation
	// Env are variables. Their values are templates, as the content of files.
	Env     map[string]string `yaml:"env"`
	Secrets []Secret          `yaml:"secrets"`
	// Allow are entries of a network policy, beside the hosts of secrets.
	Allow []string `yaml:"allow"`
	// Telemetry are hosts that the agent contacts for its makers. They are never in Allow.
	Telemetry []string `yaml:"telemetry"`
	// State are paths below the home directory that a project keeps.
	State []string   `yaml:"state"`
	Files []FileRule `yaml:"files"`
	// Source is the file of the recipe, "" for one of Atoll's own.
	Source string `yaml:"-"`
}

// An Install says how to install an agent. At most one of NPM, Pip and Script is set.
type Install struct {
	NPM    []string `yaml:"npm"` // packages as NAME@VERSION
	Pip    []string `yaml:"pip"` // packages as NAME==VERSION
	Script string   `yaml:"script"`
	Needs  []string `yaml:"needs"` // programs, like "git" or "node>=20"
}

// A Secret is a variable that holds a placeholder in the sandbox.
type Secret struct {
	Name  string   `yaml:"name"`
	Hosts []string `yaml:"hosts"` // that get the value
	// From are variables of the user's environment, in order of preference; empty means one with the same name.
	From []string `yaml:"from"`
	// Group names secrets of which the agent needs one at least. A secret without a group is optional.
	Group string `yaml:"group"`
}

// A Start says how to start an agent.
type Start struct {
	Prompt   string
	Headless bool     // ends after the prompt
	Resume   bool     // goes on with the last conversation
	Args     []string // of the user, after those of the recipe
}

// Command returns the program and its arguments. It fails with ErrUnsupported if the agent cannot start so.
func (r *Recipe) Command(s Start) ([]string, error) {
	list := r.chooseArgs(s)
	switch {
	case s.Headless && s.Prompt == "":
		return nil, atoll.Errorf("agent", r.Name, atoll.ErrInvalid, "without a terminal it needs a prompt")
	case list == nil && s.Headless && r.Resume != nil:
		return nil, atoll.Errorf("agent", r.Name, atoll.ErrUnsupported, "it resumes a conversation only in a terminal")
	case list == nil && s.Resume:
		return nil, atoll.Errorf("agent", r.Name, atoll.ErrUnsupported, "it cannot resume a conversation")
	case s.Prompt != "" && !slices.ContainsFunc(list, hasPrompt):
		return nil, atoll.Errorf("agent", r.Name, atoll.ErrUnsupported, "start it without a prompt, and type that into it")
	}
	command := []string{r.Exec}
	if list == nil {
		return slices.Concat(command, r.Args, s.Args), nil
	}
	for _, arg := range list {
		switch {
		case arg == argsMark:
			command = slices.Concat(command, r.Args, s.Args)
		case !hasPrompt(arg):
			command = append(command, arg)
		case s.Prompt != "":
			command = append(command, strings.ReplaceAll(arg, promptMark, s.Prompt))
		}
	}
	if last := len(command) - 1; command[last] == "--" { // of a prompt that may begin with -
		command = command[:last]
	}
	return command, nil
}

// chooseArgs returns the list of arguments for a start, nil if there is none.
func (r *Recipe) chooseArgs(s Start) []string {
	switch {
	case s.Headless && s.Resume:
		return r.ResumeHeadless
	case s.Headless:
		return r.Headless
	case s.Resume:
		return r.Resume
	}
	return r.Interactive
}

func hasPrompt(arg string) bool { return strings.Contains(arg, promptMark) }

// The marks in lists of arguments.
const (
	argsMark   = "${ARGS}"
	promptMark = "${PROMPT}"
)

// listSources returns the variables of the user's environment that may have the secret.
func (s *Secret) listSources() []string {
	if len(s.From) == 0 {
		return []string{s.Name}
	}
	return s.From
}
