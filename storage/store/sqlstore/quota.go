package sqlstore

import (
	"context"
	"encoding/json"
	"math"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// asked is what a quota counts of a sandbox.
type asked struct{ sandboxes, memory, cpus, processes, disk float64 }

// askedBy is what a sandbox with these resources counts for: what it names, else the
// usual limit; infinite where there is none.
func askedBy(r atoll.Resources) asked {
	r = r.WithDefaults()
	amount := func(n float64) float64 {
		if n <= 0 { // Unlimited, or of CPUs all of the machine's
			return math.Inf(1)
		}
		return n
	}
	return asked{1, amount(float64(r.Memory)), amount(r.CPUs), amount(float64(r.Processes)), amount(float64(r.Disk))}
}

func (a asked) plus(b asked) asked {
	return asked{a.sandboxes + b.sandboxes, a.memory + b.memory, a.cpus + b.cpus, a.processes + b.processes, a.disk + b.disk}
}

// bytes and number are amounts as people read them.
func bytes(n float64) string {
	if math.IsInf(n, 1) {
		return "any amount"
	}
	return atoll.Bytes(n).String()
}

func number(n float64) string {
	if math.IsInf(n, 1) {
		return "any number"
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}

// roomIn is ErrExhausted when the project of r, which is inserted, has more than q
// allows.
func roomIn(ctx context.Context, tx Tx, r *store.Record, q store.Quota) error {
	if q == (store.Quota{}) {
		return nil
	}
	mine := askedBy(r.Spec.Resources)
	limits := func(used asked) []limitOf {
		return []limitOf{
			{"sandboxes", used.sandboxes, mine.sandboxes, float64(q.Sandboxes), number},
			{"memory", used.memory, mine.memory, float64(q.Memory), bytes},
			{"cpus", used.cpus, mine.cpus, q.CPUs, number},
			{"processes", used.processes, mine.processes, float64(q.Processes), number},
			{"disk", used.disk, mine.disk, float64(q.Disk), bytes},
		}
	}
	for _, l := range limits(asked{}) {
		if l.most > 0 && math.IsInf(l.mine, 1) {
			return atoll.Errorf("create", r.ID, atoll.ErrInvalid, "project %s has a quota of %s: say how much of it this sandbox may have, or have resources.%[2]s set", r.Spec.Project, l.name)
		}
	}
	// What another one has inserted does not count before it is committed. Other
	// projects do not wait.
	if err := tx.Lock(ctx, "room of "+r.Spec.Project); err != nil {
		return err
	}
	used, err := usedBy(ctx, tx, r)
	if err != nil {
		return err
	}
	for _, l := range limits(used) {
		if l.most > 0 && l.used+l.mine > l.most {
			return atoll.E("create", "", atoll.ErrExhausted, &store.QuotaError{
				Project: r.Spec.Project, Quota: l.name, Used: l.text(l.used), Asked: l.text(l.mine), Most: l.text(l.most)})
		}
	}
	return nil
}

// A limitOf is one quota, and what there is of it.
type limitOf struct {
	name             string
	used, mine, most float64
	text             func(float64) string
}

// usedBy is what all of r's project count for but r. Specs are read as they are: what
// older programs have written counts as well.
func usedBy(ctx context.Context, tx Tx, r *store.Record) (used asked, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT spec FROM sandboxes WHERE project = ? AND id <> ?", r.Spec.Project, r.ID)
	if err != nil {
		return used, err
	}
	defer rows.Close()
	for rows.Next() {
		var text []byte
		var spec struct {
			Resources atoll.Resources `json:"resources"`
		}
		if err := rows.Scan(&text); err != nil {
			return used, err
		}
		if err := json.Unmarshal(text, &spec); err != nil {
			return used, err
		}
		used = used.plus(askedBy(spec.Resources))
	}
	return used, rows.Err()
}
