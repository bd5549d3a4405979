package genkit

import (
	"cmp"

	"github.com/firebase/genkit/go/ai"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// An Agent is what an agent file describes.
type Agent struct {
	*frontmatter.Agent // Body is for ai.WithSystem

	// Tools are those of the file's mode: sandbox_run alone, or those of a sandbox
	// that stays. A file that says nothing of a sandbox has none.
	Tools []ai.ToolRef

	kit *tools.Kit // nil without tools
}

// Load reads the agent file at path; see package frontmatter. Its tools are for p,
// which stays the caller's, and as kit and opts say but for what the file does:
// kit.Agent is that, and so is the agent's name unless opts has one. Kinds: ErrInvalid,
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

// Close lets go of what runs in the background, which runs on. The tools are not
// called any more.
func (a *Agent) Close() error {
	if a.kit == nil {
		return nil
	}
	return a.kit.Close()
}
