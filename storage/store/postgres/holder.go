package postgres

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// Each program that holds records has a lease: a row that it renews periodically. Connections break and servers
// restart, so a renewal may be late. Only the server's clock decides when a lease has expired. The program stops
// using the lease earlier by its own clock, since it counts from before the renewal. An expired lease stays expired:
// its row is removed before any caller learns that the holder is gone, and the program gets a lease with another
// name.

// A term is the duration of a lease from its last renewal.
type term time.Duration

func (t term) renewInterval() time.Duration { return time.Duration(t) / 3 }     // interval of renewals
func (t term) retryInterval() time.Duration { return time.Duration(t) / 30 }    // interval after a failed renewal
func (t term) safePeriod() time.Duration    { return time.Duration(t) * 5 / 6 } // time for which the program relies on a renewal; the rest allows for different clocks
func (t term) inSeconds() float64           { return time.Duration(t).Seconds() }

// alive is the SQL condition of a lease that has not expired; its argument is the term in seconds. After a restart of
// the server, all leases last for another term.
const alive = `greatest(until, pg_postmaster_start_time() + make_interval(secs => ?)) > clock_timestamp()`

// A lease proves that a program runs. The program renews it until stopRenewing, or until it is lost.
type lease struct {
	name string
	stop context.CancelFunc
	done chan struct{} // closed when the renewals end

	mu    sync.Mutex
	until time.Time // end of the time for which the program may rely on the lease
	lost  bool
}

// Holder implements store.Holders.
func (x *Store) Holder(ctx context.Context) (string, error) {
	x.leaseMu.Lock()
	defer x.leaseMu.Unlock()
	t := tables{x}
	if _, err := t.openDB(ctx); err != nil { // it may be closed
		return "", t.Failed("open", "", err)
	}
	if x.lease != nil && !x.lease.isValid() {
		if err := x.lease.renewLease(ctx, x); err != nil {
			return "", t.Failed("open", "", err)
		}
	}
	if x.lease != nil && x.lease.isValid() {
		return x.lease.name, nil
	}
	if x.lease != nil {
		x.lease.stopRenewing()
		x.lease = nil
	}
	held, err := x.acquireLease(ctx)
	if err != nil {
		return "", t.Failed("open", "", err)
	}
	x.lease = held
	return held.name, nil
}

// acquireLease inserts a new lease and starts its renewals.
func (x *Store) acquireLease(ctx context.Context) (*lease, error) {
	l := &lease{name: atoll.NewID(), done: make(chan struct{})}
	start := time.Now()
	err := tables{x}.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		// Leases that expired a day ago are of no use to anybody.
		if _, err := tx.ExecContext(ctx, "DELETE FROM holders WHERE until < clock_timestamp() - interval '1 day'"); err != nil {
			return err
		}
		if err := deleteOldCommits(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO holders (id, until) VALUES (?, clock_timestamp() + make_interval(secs => ?))", l.name, x.server.leaseTerm.inSeconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	l.until = start.Add(x.server.leaseTerm.safePeriod())
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	go l.renewPeriodically(ctx, x)
	return l, nil
}

// renewPeriodically renews the lease until ctx ends, or the lease is lost.
func (l *lease) renewPeriodically(ctx context.Context, x *Store) {
	defer close(l.done)
	next := x.server.leaseTerm.renewInterval()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		next = x.server.leaseTerm.renewInterval()
		if err := l.renewLease(ctx, x); err != nil {
			next = x.server.leaseTerm.retryInterval()
		}
		if l.isLost() {
			return
		}
	}
}

// renewLease extends the lease, or marks it as lost if it has expired.
func (l *lease) renewLease(ctx context.Context, x *Store) error {
	term, start := x.server.leaseTerm, time.Now()
	var n int64
	err := tables{x}.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE holders SET until = clock_timestamp() + make_interval(secs => ?) WHERE id = ? AND "+alive, term.inSeconds(), l.name, term.inSeconds())
		if err == nil {
			n, err = res.RowsAffected()
		}
		return errors.Join(err, deleteOldCommits(ctx, tx))
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 {
		l.lost = true
	} else {
		l.until = start.Add(term.safePeriod())
	}
	return nil
}

// deleteOldCommits deletes the rows of commits whose outcome nobody queries any longer.
func deleteOldCommits(ctx context.Context, tx sqlstore.Tx) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM commits WHERE word IN
		(SELECT word FROM commits WHERE since < clock_timestamp() - interval '10 minutes' FOR UPDATE SKIP LOCKED)`)
	return err
}

// isValid reports whether the program may rely on the lease. It compares the wall clock and the monotonic clock, as
// one of them may stand still while the machine sleeps.
func (l *lease) isValid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return !l.lost && now.Before(l.until) && now.Round(0).Before(l.until.Round(0))
}

func (l *lease) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// stopRenewing stops the renewals and waits for their goroutine.
func (l *lease) stopRenewing() {
	l.stop()
	<-l.done
}

// releaseLease ends the lease. If the server is unreachable, the lease expires by itself.
func (l *lease) releaseLease(db *sql.DB) {
	l.stopRenewing()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = db.ExecContext(ctx, "DELETE FROM holders WHERE id = $1", l.name)
}

// IsAlive implements store.Holders.
func (x *Store) IsAlive(ctx context.Context, holder string) (is bool, err error) {
	if id, err := atoll.NormalizeID(holder); err != nil || id == "" || id != holder {
		return false, nil
	}
	there, term := false, x.server.leaseTerm.inSeconds()
	look := func(ctx context.Context, db sqlstore.Querier) error {
		return db.QueryRowContext(ctx, "SELECT count(*) > 0, count(*) FILTER (WHERE "+alive+") > 0 FROM holders WHERE id = ?", term, holder).Scan(&there, &is)
	}
	t := tables{x}
	err = t.Read(ctx, look)
	if err == nil && there && !is {
		// The holder must be gone for good before a caller learns that it is gone.
		err = t.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM holders WHERE id = ? AND NOT "+alive, holder, term)
			if err == nil {
				err = look(ctx, tx)
			}
			return err
		})
	}
	return is, t.Failed("open", "", err)
}
