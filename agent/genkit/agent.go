package genkit

import (
	"cmp"

	"github.com/firebase/genkit/go/ai"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// An Agent is the content of an agent file, with its tools.
type Agent struct {
	*frontmatter.Agent // Body is for ai.WithSystem

	// Tools are the tools of the file's mode: only sandbox_run, or those of a lasting
	// sandbox. A file without a sandbox has none.
	Tools []ai.ToolRef

	kit *tools.Kit // nil without tools
}

// Load reads the agent file at path; see package frontmatter. Its tools use p, which
// the caller keeps, and the options in kit and opts, except that kit.Agent comes from
// the file, and so does the agent's name unless opts has one. Kinds: ErrInvalid,
// ErrNotExist.
func Load(path string, p atoll.Provider, kit tools.Options, opts Options) (*Agent, error) {
	file, err := frontmatter.Load(path)
	if err != nil {
		return nil, err
	}
	a := &Agent{Agent: file}
	if file.Sandbox == nil {
		return a, nil
	}
	kit.Agent = file.Sandbox
	if a.kit, err = tools.New(p, kit); err != nil {
		return nil, err
	}
	opts.session = session.ScopeKind(file.Sandbox.Session)
	opts.Caller.AgentName = cmp.Or(opts.Caller.AgentName, file.Name)
	a.Tools = Tools(a.kit, opts)
	return a, nil
}

// Close detaches from background commands, which continue. The tools must not be called
// any more.
func (a *Agent) Close() error {
	if a.kit == nil {
		return nil
	}
	return a.kit.Close()
}
