package registry

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// A Reconciler is a Provider that records the desired sandboxes and can restore them.
type Reconciler interface {
	Reconcile(ctx context.Context, opts ReconcileOptions) (Reconciliation, error)
}

// Reconcile compares the sandboxes that there are with those that are written
// down, and does what has to be done about the difference. It removes nothing
// because of an error: only what the provider proves not to be there is
// forgotten. That something could not be done to one sandbox is a Finding that
// Failed; the error is that of not knowing what there is. Kinds:
// ErrUnsupported, ErrUnavailable.
func Reconcile(ctx context.Context, p atoll.Provider, opts ReconcileOptions) (Reconciliation, error) {
	if r, ok := atoll.As[Reconciler](p); ok {
		return r.Reconcile(ctx, opts)
	}
	return Reconciliation{}, atoll.E("reconcile", p.Info().Name, atoll.ErrUnsupported, nil)
}

// ReconcileOptions change what Reconcile does.
type ReconcileOptions struct {
	DryRun bool `json:"dry_run,omitempty"` // change nothing: say what would be done
	Force  bool `json:"force,omitempty"`   // rebuild also what has running processes
	// Except names, by its id, what a layer around keeps for itself: it is left
	// alone, and not counted.
	Except func(id string) bool `json:"-"`
}

// A Reconciliation says what Reconcile found.
type Reconciliation struct {
	Healthy  int       `json:"healthy"`  // sandboxes that were as they should be
	Findings []Finding `json:"findings"` // the others
}

// A Finding is one sandbox that was not as it should be.
type Finding struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Project string `json:"project,omitempty"`
	Found   Found  `json:"found"`
	Done    Done   `json:"done"`             // with DryRun: what would be
	Reason  string `json:"reason,omitempty"` // one sentence: why it is so, or why nothing was done
	Failed  bool   `json:"failed,omitempty"` // what was to be done could not be, as Reason says
}

// Found says what is not as it should be.
type Found string

// What can be found.
const (
	FoundUnfinished Found = "unfinished" // a creation, removal or rebuild that was cut short
	FoundMissing    Found = "missing"    // it is written down, and the provider has it no longer
	FoundFailed     Found = "failed"     // it is in StateFailed
	FoundOutdated   Found = "outdated"   // its image's name stands for another image now
	FoundOrphan     Found = "orphan"     // it was made here, and is not written down
	FoundUnknown    Found = "unknown"    // it is older than what is written down
)

// Done says what became of a finding.
type Done string

// What can be done.
const (
	DoneNothing   Done = "nothing"   // it was left as it is
	DoneFinished  Done = "finished"  // what was cut short was brought to its end
	DoneForgotten Done = "forgotten" // it is no longer written down, and its name is free
	DoneRestarted Done = "restarted"
	DoneRebuilt   Done = "rebuilt" // removed and made again, with its data volume, id, name and secret
	DoneRemoved   Done = "removed" // but for its data volume
	DoneAdopted   Done = "adopted" // it is written down from now on
)
