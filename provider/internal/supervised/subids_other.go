//go:build !linux

package supervised

// SubIDs are subordinate ids, which only Linux has.
type SubIDs struct{}

func (p *Provider) retryAsOwner(remove func() error) error { return remove() }

func (*SubIDs) mapProcess(int) error { return nil }
