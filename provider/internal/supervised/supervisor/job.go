package supervisor

import (
	"encoding/json"
	"errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A Job is what a provider asks a supervisor to do: run one sandbox. All paths are
// absolute paths of the host; the provider has made and checked them.
type Job struct {
	Spec   atoll.Spec      `json:"spec"` // defaults filled in
	Caps   atoll.Caps      `json:"caps"`
	Record statedir.Record `json:"record"` // what the supervisor goes on to keep

	State string `json:"state"` // the provider's state directory
	Dir   string `json:"dir"`   // the sandbox's own directory: socket, log, what its engine needs and keeps
	Run   string `json:"run"`   // what must not survive a reboot

	Mounts []Mount `json:"mounts,omitempty"` // work directory, volumes and binds, parents first
	// Unattended says that calls are no use of it: what runs inside is, and what a
	// provider notes. Something else may look at it all the time.
	Unattended bool   `json:"unattended,omitempty"`
	Snapshot   string `json:"snapshot,omitempty"` // directory of what Engine.Snapshot wrote, to go on from; "" for none

	Engine json.RawMessage `json:"engine,omitempty"` // what the engine has to know besides
	Fail   string          `json:"fail,omitempty"`   // one of Steps, which a test lets fail
}

// A Mount shows a directory or file of the host inside the sandbox.
type Mount struct {
	Source   string      `json:"source,omitempty"` // empty for a tmpfs
	Target   string      `json:"target"`
	ReadOnly bool        `json:"read_only,omitempty"`
	Size     atoll.Bytes `json:"size,omitzero"` // of a tmpfs
}

// A Reply is what the supervisor answers once the sandbox runs, or could not be
// made to.
type Reply struct {
	Op      string       `json:"op,omitempty"`
	ID      string       `json:"id,omitempty"`
	Kind    atoll.Kind   `json:"kind,omitempty"` // "" means it runs
	Message string       `json:"message,omitempty"`
	Status  atoll.Status `json:"status"`
}

// Names of the files in Job.Dir.
const (
	SocketName = "keeper.sock" // serves the API of this one sandbox
	LockName   = "keeper.lock" // held by the supervisor as long as it lives
	LogName    = "keeper.log"
	MainName   = "main.ended" // what the main process printed, and its exit; see LoadMain
)

// failureReply is the Reply that carries err.
func failureReply(err error) Reply {
	r := Reply{Op: "start", Kind: atoll.KindOf(err), Message: err.Error()}
	var e *atoll.Error
	if errors.As(err, &e) {
		r.Op, r.ID, r.Message = e.Op, e.ID, e.Kind.Error()
		if e.Err != nil {
			r.Message = e.Err.Error()
		}
	}
	return r
}

// Err is the error that the Reply carries, or nil.
func (r *Reply) Err() error {
	if r.Kind == "" {
		return nil
	}
	return atoll.Errorf(r.Op, r.ID, r.Kind, "%s", r.Message)
}
