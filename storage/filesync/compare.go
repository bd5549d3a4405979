package filesync

import "time"

// A Diff is what is to be done to make a directory hold what a bucket does.
type Diff struct {
	Download []File   // they are not there, or differ
	Delete   []string // they are there only
	Skip     []File   // they are alike
}

// Compare compares two states, of which nil is an empty one. It looks at checksums,
// not at times, and takes time in proportion to the entries.
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
			if l != nil && l.same(r) {
				d.Skip = append(d.Skip, *r)
			} else {
				d.Download = append(d.Download, *r)
			}
		}
	}
	if local != nil {
		for i := range local.Files { // in their order
			if here[local.Files[i].Path] != nil {
				d.Delete = append(d.Delete, local.Files[i].Path)
			}
		}
	}
	return d
}

// DefaultStale is the threshold of SANDBOX_SYNC_STALE_THRESHOLD when it says nothing.
const DefaultStale = time.Hour

// Stale reports whether the state is older than threshold at a time: one exactly as
// old is not. No state, or one that was never synced, is stale. One of the future is
// not.
func (s *State) Stale(now time.Time, threshold time.Duration) bool {
	return s == nil || s.LastSynced == 0 || now.Sub(time.Unix(s.LastSynced, 0)) > threshold
}
