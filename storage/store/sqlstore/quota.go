package sqlstore

import (
	"context"
	"encoding/json"
	"math"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A usage is the amounts that count against a quota.
type usage struct{ sandboxes, memory, cpus, processes, disk float64 }

// usageOf returns the usage of a sandbox with resources r: the requested amounts, otherwise the default limits. An
// unlimited amount is infinite.
func usageOf(r atoll.Resources) usage {
	r = r.WithDefaults()
	amount := func(n float64) float64 {
		if n <= 0 { // Unlimited, or for CPUs all of the machine
			return math.Inf(1)
		}
		return n
	}
	return usage{1, amount(float64(r.Memory)), amount(r.CPUs), amount(float64(r.Processes)), amount(float64(r.Disk))}
}

func (a usage) addUsage(b usage) usage {
	return usage{a.sandboxes + b.sandboxes, a.memory + b.memory, a.cpus + b.cpus, a.processes + b.processes, a.disk + b.disk}
}

// formatBytes and formatNumber return amounts as people read them.
func formatBytes(n float64) string {
	if math.IsInf(n, 1) {
		return "unlimited"
	}
	return atoll.Bytes(n).String()
}

func formatNumber(n float64) string {
	if math.IsInf(n, 1) {
		return "unlimited"
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}

// checkQuota returns ErrExhausted if the project of r, which has just been inserted, exceeds q.
func checkQuota(ctx context.Context, tx Tx, r *store.Record, q store.Quota) error {
	if q == (store.Quota{}) {
		return nil
	}
	own := usageOf(r.Spec.Resources)
	limits := func(used usage) []quotaLimit {
		return []quotaLimit{
			{"sandboxes", used.sandboxes, own.sandboxes, float64(q.Sandboxes), formatNumber},
			{"memory", used.memory, own.memory, float64(q.Memory), formatBytes},
			{"cpus", used.cpus, own.cpus, q.CPUs, formatNumber},
			{"processes", used.processes, own.processes, float64(q.Processes), formatNumber},
			{"disk", used.disk, own.disk, float64(q.Disk), formatBytes},
		}
	}
	for _, l := range limits(usage{}) {
		if l.limit > 0 && math.IsInf(l.requested, 1) {
			return atoll.Errorf("create", r.ID, atoll.ErrInvalid, "project %s has a quota of %s: request a limited amount for this sandbox, or set resources.%[2]s", r.Spec.Project, l.name)
		}
	}
	// Inserts of other transactions do not count before they are committed, so wait for those. Other projects do not
	// wait.
	if err := tx.Lock(ctx, "room of "+r.Spec.Project); err != nil {
		return err
	}
	used, err := projectUsage(ctx, tx, r)
	if err != nil {
		return err
	}
	for _, l := range limits(used) {
		if l.limit > 0 && l.used+l.requested > l.limit {
			return atoll.E("create", "", atoll.ErrExhausted, &store.QuotaError{
				Project: r.Spec.Project, Quota: l.name, Used: l.format(l.used), Asked: l.format(l.requested), Most: l.format(l.limit)})
		}
	}
	return nil
}

// A quotaLimit is one limit of a quota, with the amounts used and requested.
type quotaLimit struct {
	name                   string
	used, requested, limit float64
	format                 func(float64) string
}

// projectUsage returns the total usage of all records in the project of r, except for r. It reads specs as stored, so
// those of older programs count too.
func projectUsage(ctx context.Context, tx Tx, r *store.Record) (used usage, err error) {
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
		used = used.addUsage(usageOf(spec.Resources))
	}
	return used, rows.Err()
}
