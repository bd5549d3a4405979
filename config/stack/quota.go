package stack

import (
	"github.com/seed46cd37a8/atoll/storage/store"
)

// quotaOf returns the quota of a project.
func (b *Builder) quotaOf(project string) store.Quota {
	q := b.Quota
	if own := b.Quotas[project]; own != nil {
		q = *own
	}
	return store.Quota(q)
}
