package supervised

import (
	"cmp"
	"errors"
	"io/fs"

	"github.com/seed46cd37a8/atoll"
)

// ImageUsers returns, by digest, a user of each image that is in use: a sandbox, running or
// not, or a snapshot.
func ImageUsers(p *Provider) (map[string]string, error) {
	users := map[string]string{}
	snapshots, err := p.dir.SnapshotIDs()
	if err != nil {
		return nil, atoll.E("images", "", atoll.ErrInternal, err)
	}
	for _, id := range snapshots {
		if r, err := p.readSnapshot(id); err == nil { // else it was removed, or nothing can start from it
			users[r.Record.Digest] = "snapshot " + id
		}
	}
	ids, err := p.dir.IDs()
	if err != nil {
		return nil, atoll.E("images", "", atoll.ErrInternal, err)
	}
	for _, id := range ids {
		rec, err := p.dir.Read(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, atoll.E("images", id, atoll.ErrInternal, err)
		}
		users[rec.Digest] = "sandbox " + cmp.Or(rec.Status.Spec.Name, id)
	}
	delete(users, "") // of the host's file system, and of directories
	return users, nil
}
