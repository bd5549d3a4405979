//go:build unix

package child

import (
	"runtime"
	"sync"
)

// churn has n threads begin and end.
func churn(n int) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() { runtime.LockOSThread() }) // never unlocked: the thread ends with it
	}
	all.Wait()
}
