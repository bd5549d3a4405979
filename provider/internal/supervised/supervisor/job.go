package supervisor

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretsource"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A Job asks a supervisor to run one sandbox. All paths are absolute paths of the host; the
// provider has made and checked them.
type Job struct {
	Spec   atoll.Spec      `json:"spec"` // defaults filled in
	Caps   atoll.Caps      `json:"caps"`
	Record statedir.Record `json:"record"` // the supervisor updates it from now on

	State string `json:"state"` // the provider's state directory
	Dir   string `json:"dir"`   // the sandbox's own directory: socket, log, what its engine needs and keeps
	Run   string `json:"run"`   // what must not survive a reboot

	Mounts []Mount `json:"mounts,omitempty"` // work directory, volumes and binds, parents first
	// Unattended says that calls to the supervisor do not count as use; running processes do, and
	// use that a provider notes. Set it if something polls the sandbox all the time.
	Unattended bool `json:"unattended,omitempty"`
	// Ahead asks for an engine that boots before there is a sandbox for it. After the reply, the supervisor waits for the
	// job of a sandbox of the same kind, whose Dir is this one, renamed. Only an engine that is an Adopter can do that.
	Ahead    bool   `json:"ahead,omitempty"`
	Snapshot string `json:"snapshot,omitempty"` // directory that Engine.Snapshot wrote, to restore; "" for none

	Secrets map[string]string `json:"secrets,omitempty"` // values of the secrets of Spec, by name; nothing else has them
	// SecretProgram reads the values in stores, with the environment of the provider that started the sandbox; nil for none.
	SecretProgram *secretsource.Program `json:"secret_program,omitempty"`

	Engine json.RawMessage `json:"engine,omitempty"` // additional data for the engine
	Fail   string          `json:"fail,omitempty"`   // the name of the step that a test lets fail
}

// A Mount shows a directory or file of the host inside the sandbox.
type Mount struct {
	Source   string      `json:"source,omitempty"` // empty for a tmpfs
	Target   string      `json:"target"`
	ReadOnly bool        `json:"read_only,omitempty"`
	Bind     bool        `json:"bind,omitempty"` // of a path that the user named; other users of the machine may reach it
	Size     atoll.Bytes `json:"size,omitzero"`  // of a tmpfs
}

// WritesHostFiles reports whether the sandbox can write to a directory of the host that other users may enter.
func (j *Job) WritesHostFiles() bool {
	return slices.ContainsFunc(j.Mounts, func(m Mount) bool { return m.Bind && !m.ReadOnly })
}

// A Reply is the supervisor's answer once the sandbox runs, or could not be started.
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
	LockName   = "keeper.lock" // the supervisor holds it as long as it lives
	LogName    = "keeper.log"
	MainName   = "main.ended" // output and exit of the main process; see LoadMain
)

// failureReply returns the Reply that carries err.
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

// Err returns the error that the Reply carries, or nil.
func (r *Reply) Err() error {
	if r.Kind == "" {
		return nil
	}
	return atoll.Errorf(r.Op, r.ID, r.Kind, "%s", r.Message)
}
