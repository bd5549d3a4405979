package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// CIDs is the path of a file that records the next free vsock address. No two machines of a host
// may have the same address, whichever program started them: all programs that use one file share
// the addresses, and none is given twice.
type CIDs string

// Next returns an address that was never given before. It waits for other callers as long as ctx
// lasts. Kinds: ErrExhausted, after four billion addresses.
func (c CIDs) Next(ctx context.Context) (uint32, error) {
	path := string(c)
	lock, err := fsutil.AwaitLock(ctx, path+".lock")
	if err != nil {
		return 0, err
	}
	defer lock.Release()
	next := MinCID
	switch text, err := os.ReadFile(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	case len(text) != 4:
		return 0, atoll.Errorf("cid", "", atoll.ErrInternal, "%s is damaged: remove it when no virtual machine runs", path)
	default:
		next = max(next, binary.BigEndian.Uint32(text))
	}
	if next == math.MaxUint32 { // VMADDR_CID_ANY
		return 0, atoll.Errorf("cid", "", atoll.ErrExhausted, "all vsock addresses are used up: remove %s when no virtual machine runs", path)
	}
	return next, fsutil.WriteFile(path, binary.BigEndian.AppendUint32(nil, next+1))
}
