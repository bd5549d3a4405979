package registry

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// A Reconciler is a Provider that records the desired sandboxes and can restore them.
type Reconciler interface {
	Reconcile(ctx context.Context, opts ReconcileOptions) (Reconciliation, error)
}

// Reconcile compares the sandboxes of the provider with the records, and repairs
// the differences. It never removes anything because of an error: it forgets only
// sandboxes that the provider reports as not found. An action that fails for one
// sandbox is a Finding with Failed. Reconcile returns an error if it cannot list
// the sandboxes or the records. Kinds: ErrUnsupported, ErrUnavailable.
func Reconcile(ctx context.Context, p atoll.Provider, opts ReconcileOptions) (Reconciliation, error) {
	if r, ok := atoll.As[Reconciler](p); ok {
		return r.Reconcile(ctx, opts)
	}
	return Reconciliation{}, atoll.E("reconcile", p.Info().Name, atoll.ErrUnsupported, nil)
}

// ReconcileOptions configure Reconcile.
type ReconcileOptions struct {
	DryRun bool `json:"dry_run,omitempty"` // change nothing, report what Reconcile would do
	Force  bool `json:"force,omitempty"`   // rebuild also sandboxes with running processes
	// Except returns true for the ID of a sandbox that a layer around manages
	// itself. Reconcile leaves it alone and does not count it.
	Except func(id string) bool `json:"-"`
}

// A Reconciliation is the result of Reconcile.
type Reconciliation struct {
	Healthy  int       `json:"healthy"`  // number of sandboxes without a finding
	Findings []Finding `json:"findings"` // of the others
}

// A Finding is one difference between a record and its sandbox.
type Finding struct {
	ID      string `json:"id"`                // of the sandbox
	Name    string `json:"name,omitempty"`    // of the sandbox
	Project string `json:"project,omitempty"` // of the sandbox
	Found   Found  `json:"found"`             // the difference
	Done    Action `json:"done"`              // with DryRun: what Reconcile would do
	Reason  string `json:"reason,omitempty"`  // the cause of the finding, or why Reconcile did nothing
	Failed  bool   `json:"failed,omitempty"`  // the action failed, with the error in Reason
}

// Found is the kind of a finding.
type Found string

// The kinds of findings.
const (
	FoundUnfinished Found = "unfinished" // an interrupted creation, removal or rebuild
	FoundMissing    Found = "missing"    // the record exists, the sandbox does not
	FoundFailed     Found = "failed"     // the sandbox is in StateFailed
	FoundOutdated   Found = "outdated"   // its image reference now resolves to another image
	FoundOrphan     Found = "orphan"     // a program with this store created it, and it has no record
	FoundUnknown    Found = "unknown"    // it is older than the registry
)

// Action is the action of Reconcile on a finding.
type Action string

// The actions.
const (
	DoneNothing   Action = "nothing"   // no change
	DoneFinished  Action = "finished"  // completed the interrupted operation
	DoneForgotten Action = "forgotten" // deleted the record, which frees the name
	DoneRestarted Action = "restarted"
	DoneRebuilt   Action = "rebuilt" // removed and created again, with its data volume, ID, name and secret
	DoneRemoved   Action = "removed" // except for its data volume
	DoneAdopted   Action = "adopted" // recorded
)
