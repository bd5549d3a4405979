package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/seed46cd37a8/atoll"
)

// While the engine removes a container, its sandbox has the state that it had before. Only a
// container that the engine could not remove has failed.
func TestStateWhileRemoving(t *testing.T) {
	const started = "2026-01-02T03:04:05.6Z"
	for _, c := range []struct {
		what  string
		spec  atoll.Spec
		state container.State
		want  atoll.State
	}{
		{"a sandbox that was stopped", atoll.Spec{}, container.State{StartedAt: started, Status: container.StateRemoving}, atoll.StateStopped},
		{"a sandbox that was killed", atoll.Spec{}, container.State{StartedAt: started, Status: container.StateRemoving, ExitCode: 137}, atoll.StateStopped},
		{"a main process that failed", atoll.Spec{Cmd: []string{"false"}}, container.State{StartedAt: started, Status: container.StateRemoving, ExitCode: 1}, atoll.StateFailed},
		{"a sandbox that never ran", atoll.Spec{NoStart: true}, container.State{Status: container.StateRemoving}, atoll.StateCreated},
		{"a creation that is being undone", atoll.Spec{}, container.State{Status: container.StateRemoving}, atoll.StateCreating},
		{"a removal that failed", atoll.Spec{}, container.State{StartedAt: started, Status: container.StateDead}, atoll.StateFailed},
	} {
		st := atoll.Status{Spec: c.spec, Started: parseTime(c.state.StartedAt), Caps: atoll.Caps{ExitSignal: true}}
		if got := stateOf(&st, &c.state); got != c.want {
			t.Errorf("%s: the state is %s, %q; want %s", c.what, got, st.Reason, c.want)
		}
	}
}
