package remote

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
)

// A Backend is a service that stores records, runs guests and has volumes. O is the backend's
// own part of a record. All methods may be called concurrently; the engine serializes the
// changes that this program makes to one sandbox.
type Backend[O any] interface {
	// Open connects to the service on the first call. Kinds: ErrUnavailable, ErrDenied.
	Open(ctx context.Context, op string) error
	// WrapError gives an error of the service its kind. It returns other errors unchanged, and
	// the error of ctx if that has ended.
	WrapError(ctx context.Context, op, id string, err error) error
	// CheckSpec returns an error for a spec that the backend cannot fulfil. Kinds:
	// ErrUnsupported, ErrInvalid.
	CheckSpec(spec *atoll.Spec) error

	Records[O]
	Runs[O]
	Volumes[O]
}

// Records are the stored states of sandboxes. A change is lost to no other program: Update
// detects that the record was written since it was read.
type Records[O any] interface {
	// Find returns a record with the state of its sandbox. Kinds: ErrNotFound.
	Find(ctx context.Context, op, id string, as Freshness) (*Record[O], error)
	// List returns the records of all sandboxes.
	List(ctx context.Context, op string) ([]*Record[O], error)
	// Insert stores a new record. Errors: ErrDoneElsewhere if the id has one.
	Insert(ctx context.Context, r *Record[O]) error
	// Update calls fn to change the note of a sandbox, stores the result and updates r. If fn
	// returns an error, nothing changes. If another program has written meanwhile, Update calls
	// fn again with the new note. Kinds: ErrNotFound (the sandbox does not exist, or another one
	// has its id), and those of fn.
	Update(ctx context.Context, r *Record[O], fn func(n *Note) error) error
	// Delete deletes a record, and the output that was stored with it.
	Delete(ctx context.Context, r *Record[O]) error
	// AwaitChange waits until the record may have changed, or its lease has expired.
	AwaitChange(ctx context.Context, r *Record[O]) error

	// ClaimName gives the sandbox its name. If another sandbox has the name, it returns that
	// one's id.
	ClaimName(ctx context.Context, r *Record[O]) (holder string, err error)
	// ReleaseName takes the name from the sandbox, if the sandbox has it.
	ReleaseName(ctx context.Context, r *Record[O]) error
	// Resolve returns the id of the sandbox with a name. Kinds: ErrNotFound.
	Resolve(ctx context.Context, project, name string) (id string, err error)
}

// Freshness says how current a record must be.
type Freshness int

const (
	// Known may be the state of a moment ago, if Config.Caches is set.
	Known Freshness = iota
	// Latest includes every change that any program has made.
	Latest
	// Stored is Latest, but a backend need not look at the run of the sandbox: the state may be
	// that of its last change.
	Stored
)

// Runs are the executions of sandboxes, each with a guest.
type Runs[O any] interface {
	// Launch starts a run, and returns when its guest answers or its main process has run and
	// ended. It sets the note's Run in memory only, and Image and Ports as far as it knows them. If
	// it fails, no run is left.
	Launch(ctx context.Context, r *Record[O]) error
	// Connect connects to the guest of the sandbox's run. Kinds: ErrUnavailable, ErrDenied.
	Connect(ctx context.Context, op string, r *Record[O]) (guestconn.Connection, error)
	// AwaitEnd waits for the end of a sandbox whose guest does not answer, for as long as the
	// service may take to report it. It returns the error of RequireRunning; nil if the sandbox
	// runs on.
	AwaitEnd(ctx context.Context, op, id string) error
	// FinishRun ends a run and returns the output of its main process. The guest has ended all
	// processes if answered is true; otherwise the service ends them, with the grace period if it
	// has one.
	FinishRun(ctx context.Context, r *Record[O], grace time.Duration, answered bool) (*guest.Printed, error)
	// RecordEnd records the end of a run that has ended by itself, with Engine.WriteEnd, and
	// updates the note of r. It does nothing if the run goes on.
	RecordEnd(ctx context.Context, r *Record[O]) error
	// RetireRun releases what the service still has of the run that r had when it was read, and
	// whose end is recorded.
	RetireRun(ctx context.Context, r *Record[O]) error
	// EndRun ends the run that Launch has set in r, at once.
	EndRun(ctx context.Context, r *Record[O]) error
	// Output returns the stored output of the main process of an ended sandbox. It may update r.
	Output(ctx context.Context, r *Record[O]) (*guest.Printed, error)
	// EndStrays ends all runs of a sandbox that its record does not have: the program that
	// started them died, or gave up.
	EndStrays(ctx context.Context, r *Record[O]) error
	// DropRuns ends all runs of a sandbox that is being removed, and deletes what the service has
	// of it besides its record, name and volumes.
	DropRuns(ctx context.Context, r *Record[O]) error

	// ConnectCaretaker connects to the caretaker of a stopped sandbox: a guest with its volumes
	// and nothing else. It starts one unless another program has.
	ConnectCaretaker(ctx context.Context, op string, r *Record[O]) (guestconn.Connection, error)
	// EndCaretaker ends the caretaker of a sandbox, if there is one.
	EndCaretaker(ctx context.Context, r *Record[O]) error

	// Survey returns the records of all sandboxes for a sweep. It records the ends of runs and
	// ends strays as it sees them. It makes no call to the service before another call of the
	// provider has, and returns no records then. due is the time of the next sweep that the
	// backend needs; zero means none.
	Survey(ctx context.Context) (records []*Record[O], due time.Time, err error)
}

// Volumes are the data volumes of sandboxes and the named volumes of projects.
type Volumes[O any] interface {
	// Prepare returns the steps that create what outlives the runs of a sandbox, such as its
	// volumes. A step passes to Creation.OnUndo how to undo what DropRuns does not delete.
	Prepare(c *Creation[O]) []steps.Step
	// CheckDataVolume returns an error if the data volume of a sandbox was deleted: an empty one
	// in its place would hide the loss. Kinds: ErrUnavailable.
	CheckDataVolume(ctx context.Context, r *Record[O]) error
	// ListVolumes returns all volumes. The engine sets InUse.
	ListVolumes(ctx context.Context) ([]atoll.Volume, error)
	// UsedVolumes returns the volumes of all sandboxes, running or stopped: see the function of
	// that name.
	UsedVolumes(ctx context.Context) (map[VolumeKey]bool, error)
	// DeleteVolume deletes the volume of that project and name, unless a sandbox mounts it.
	// Errors: NoVolumeError, VolumeInUseError.
	DeleteVolume(ctx context.Context, project, name string) error
	// DropDataVolume deletes the data volume of a sandbox that is being removed and has no run, or
	// that was removed, if it has one; r is its last record, or nil.
	DropDataVolume(ctx context.Context, id string, r *Record[O]) error
	// DropVolumesOf deletes the volumes that an abandoned creation has made, as far as the
	// backend can tell.
	DropVolumesOf(ctx context.Context, r *Record[O]) error
}
