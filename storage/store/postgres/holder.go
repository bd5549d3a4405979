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

// A holder is a row that its program writes again and again, a lease. That may be late:
// connections break, and servers start again. The server's clock alone says when it has
// ended, and whoever holds it ends it by his own clock before, since he counts from before
// he wrote. What ended stays so: a row is removed before anybody is told that its holder
// is no longer there, and what begins again has another name.

// A term is how long a lease lasts from when it was written.
type term time.Duration

func (t term) renew() time.Duration { return time.Duration(t) / 3 }     // how often it is
func (t term) retry() time.Duration { return time.Duration(t) / 30 }    // when it could not be
func (t term) sure() time.Duration  { return time.Duration(t) * 5 / 6 } // clocks may differ by the rest in that time
func (t term) seconds() float64     { return time.Duration(t).Seconds() }

// alive is the condition of a lease that has not ended; its argument is the term. A server
// that was down gives all who were there time to say that they still are.
const alive = `greatest(until, pg_postmaster_start_time() + make_interval(secs => ?)) > clock_timestamp()`

// A lease is how a program is known to run. It is renewed until it is ended, or lost.
type lease struct {
	name string
	stop context.CancelFunc
	done chan struct{} // closed when it is not renewed any longer

	mu    sync.Mutex
	until time.Time // when this program can no longer be sure of it
	lost  bool
}

// Holder implements store.Holders.
func (x *Store) Holder(ctx context.Context) (string, error) {
	x.taking.Lock()
	defer x.taking.Unlock()
	t := tables{x}
	if _, err := t.database(ctx); err != nil { // it may be closed
		return "", t.Failed("open", "", err)
	}
	if x.lease != nil && !x.lease.sure() {
		if err := x.lease.renew(ctx, x); err != nil {
			return "", t.Failed("open", "", err)
		}
	}
	if x.lease != nil && x.lease.sure() {
		return x.lease.name, nil
	}
	if x.lease != nil {
		x.lease.end()
		x.lease = nil
	}
	held, err := x.take(ctx)
	if err != nil {
		return "", t.Failed("open", "", err)
	}
	x.lease = held
	return held.name, nil
}

// take begins a lease.
func (x *Store) take(ctx context.Context) (*lease, error) {
	l := &lease{name: atoll.NewID(), done: make(chan struct{})}
	begun := time.Now()
	err := tables{x}.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		// Nobody asks for one of those that is long gone.
		if _, err := tx.ExecContext(ctx, "DELETE FROM holders WHERE until < clock_timestamp() - interval '1 day'"); err != nil {
			return err
		}
		if err := forget(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO holders (id, until) VALUES (?, clock_timestamp() + make_interval(secs => ?))", l.name, x.server.lease.seconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	l.until = begun.Add(x.server.lease.sure())
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	go l.keep(ctx, x)
	return l, nil
}

// keep renews a lease until ctx ends, or it is lost.
func (l *lease) keep(ctx context.Context, x *Store) {
	defer close(l.done)
	next := x.server.lease.renew()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		next = x.server.lease.renew()
		if err := l.renew(ctx, x); err != nil {
			next = x.server.lease.retry()
		}
		if l.isLost() {
			return
		}
	}
}

// renew makes the lease last, if it has not ended.
func (l *lease) renew(ctx context.Context, x *Store) error {
	term, begun := x.server.lease, time.Now()
	var n int64
	err := tables{x}.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE holders SET until = clock_timestamp() + make_interval(secs => ?) WHERE id = ? AND "+alive, term.seconds(), l.name, term.seconds())
		if err == nil {
			n, err = res.RowsAffected()
		}
		return errors.Join(err, forget(ctx, tx))
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 {
		l.lost = true
	} else {
		l.until = begun.Add(term.sure())
	}
	return nil
}

// forget removes the words of transactions of which nobody asks any longer.
func forget(ctx context.Context, tx sqlstore.Tx) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM commits WHERE word IN
		(SELECT word FROM commits WHERE since < clock_timestamp() - interval '10 minutes' FOR UPDATE SKIP LOCKED)`)
	return err
}

// sure reports whether the lease has not ended, also where the machine slept: one of its
// two clocks has gone on.
func (l *lease) sure() bool {
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

// end waits until it is renewed no longer.
func (l *lease) end() {
	l.stop()
	<-l.done
}

// giveUp ends a lease. If it cannot say so, that ends in its time.
func (l *lease) giveUp(db *sql.DB) {
	l.end()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = db.ExecContext(ctx, "DELETE FROM holders WHERE id = $1", l.name)
}

// Alive implements store.Holders.
func (x *Store) Alive(ctx context.Context, holder string) (is bool, err error) {
	if id, err := atoll.NormalizeID(holder); err != nil || id == "" || id != holder {
		return false, nil
	}
	there, term := false, x.server.lease.seconds()
	look := func(ctx context.Context, db sqlstore.Querier) error {
		return db.QueryRowContext(ctx, "SELECT count(*) > 0, count(*) FILTER (WHERE "+alive+") > 0 FROM holders WHERE id = ?", term, holder).Scan(&there, &is)
	}
	t := tables{x}
	err = t.Read(ctx, look)
	if err == nil && there && !is {
		// Nobody is told that it has ended before that is so for good.
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
