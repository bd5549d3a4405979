package filesync

import "time"

// A Diff lists the actions that make a directory equal to a version in the bucket.
type Diff struct {
	Download []File   // missing in the directory, or different
	Delete   []string // only in the directory
	Skip     []File   // equal
}

// Compare compares two states; nil is an empty one. It compares checksums, not times,
// and takes linear time.
func Compare(local, remote *State) Diff {
	var d Diff
	here := map[string]*File{}
	if local != nil {
		for i := range local.Files {
			here[local.Files[i].Path] = &local.Files[i]
		}
	}
	if remote != nil {
		for i := range remote.Files {
			r := &remote.Files[i]
			l := here[r.Path]
			delete(here, r.Path)
			if l != nil && l.sameEntry(r) {
				d.Skip = append(d.Skip, *r)
			} else {
				d.Download = append(d.Download, *r)
			}
		}
	}
	if local != nil {
		for i := range local.Files { // keeps their order
			if here[local.Files[i].Path] != nil {
				d.Delete = append(d.Delete, local.Files[i].Path)
			}
		}
	}
	return d
}

// DefaultStale is the default of SANDBOX_SYNC_STALE_THRESHOLD.
const DefaultStale = time.Hour

// Stale reports whether the state is older than threshold at time now; a state exactly
// that old isn't. A nil state and one that was never synced are stale. A state from the
// future isn't.
func (s *State) Stale(now time.Time, threshold time.Duration) bool {
	return s == nil || s.LastSynced == 0 || now.Sub(time.Unix(s.LastSynced, 0)) > threshold
}
