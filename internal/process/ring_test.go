package process

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func drainReader(rd *reader) (got []byte, gap int64) {
	buf := make([]byte, 7)
	for {
		n, from, to, eof := rd.read(buf)
		got = append(got, buf[:n]...)
		gap += to - from
		if n == 0 && to == from || eof {
			return got, gap
		}
	}
}

func TestRingKeepsTheLastBytes(t *testing.T) {
	for _, limit := range []int64{1, 3, 100, 5000, 1 << 20} {
		r := newRing(limit)
		var all []byte
		rng := rand.New(rand.NewPCG(1, uint64(limit)))
		for len(all) < 20000 {
			p := make([]byte, rng.IntN(700))
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			r.write(p)
			all = append(all, p...)
			if int64(len(r.buf)) > limit {
				t.Fatalf("limit %d: buffer of %d bytes", limit, len(r.buf))
			}
		}
		r.finishStream()
		kept := min(int64(len(all)), limit)
		if st := r.streamStatus(); st.Written != int64(len(all)) || st.Oldest != int64(len(all))-kept {
			t.Errorf("limit %d: status %+v after %d bytes", limit, st, len(all))
		}
		rd, ok := r.addReader("", 0, false, make(chan struct{}, 1))
		if !ok {
			t.Fatalf("limit %d: attach at 0 refused", limit)
		}
		got, gap := drainReader(rd)
		if gap != int64(len(all))-kept || !bytes.Equal(got, all[gap:]) {
			t.Errorf("limit %d: read %d bytes after a gap of %d, want the last %d", limit, len(got), gap, kept)
		}
	}
}

func TestRingAttachOffsets(t *testing.T) {
	r := newRing(10)
	r.write([]byte("0123456789ab"))
	for _, tt := range []struct {
		from int64
		ok   bool
		want string
		gap  int64
	}{
		{0, true, "23456789ab", 2},
		{5, true, "56789ab", 0},
		{12, true, "", 0},
		{atoll.FromNow, true, "", 0},
		{13, false, "", 0},
		{-2, false, "", 0},
	} {
		rd, ok := r.addReader("", tt.from, true, make(chan struct{}, 1))
		if ok != tt.ok {
			t.Errorf("attach(%d) = %v, want %v", tt.from, ok, tt.ok)
		}
		if !ok {
			continue
		}
		if got, gap := drainReader(rd); string(got) != tt.want || gap != tt.gap {
			t.Errorf("from %d: read %q after a gap of %d, want %q, %d", tt.from, got, gap, tt.want, tt.gap)
		}
		rd.detachReader()
	}
}

func TestRingWriterWaitsForTheSlowestReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(4)
		slow, _ := r.addReader("", 0, false, make(chan struct{}, 1))
		fast, _ := r.addReader("", 0, false, make(chan struct{}, 1))
		written := false
		go func() {
			r.write([]byte("012345"))
			written = true
		}()
		synctest.Wait()
		if got, _ := drainReader(fast); string(got) != "0123" || written {
			t.Errorf("with a reader at 0 of 4 bytes: read %q, written %v", got, written)
		}
		got, gap := drainReader(slow)
		synctest.Wait()
		if !written {
			t.Error("the writer still waits after all was read")
		}
		rest, restGap := drainReader(slow) // nothing, if the writer was fast
		if got = append(got, rest...); string(got) != "012345" || gap+restGap != 0 {
			t.Errorf("slow reader got %q and gaps of %d and %d", got, gap, restGap)
		}
	})
}

func TestRingDetachAndReleaseFreeTheWriter(t *testing.T) {
	free := map[string]func(*ring, *reader){
		"detach":  func(_ *ring, rd *reader) { rd.detachReader() },
		"release": func(r *ring, _ *reader) { r.releaseWriter() },
		"finish":  func(r *ring, _ *reader) { r.finishStream() },
	}
	for name, do := range free {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRing(4)
				rd, _ := r.addReader("", 0, false, make(chan struct{}, 1))
				go r.write([]byte("0123456789"))
				synctest.Wait()
				do(r, rd)
				synctest.Wait() // the test fails when the writer still waits at its end
			})
		})
	}
}

func TestRingShrinksWhenFinished(t *testing.T) {
	r := newRing(1 << 20)
	r.write([]byte("hello"))
	r.finishStream()
	if len(r.buf) != 5 {
		t.Errorf("a finished ring of 5 bytes holds %d", len(r.buf))
	}
	r.write([]byte("more"))
	if st := r.streamStatus(); st.Written != 5 {
		t.Errorf("written %d after finish, want 5", st.Written)
	}
}

func TestRingIsEmptiedOnlyWhenNobodyReads(t *testing.T) {
	r := newRing(100)
	r.write([]byte("hello"))
	if n := r.dropContent(); n != 0 {
		t.Errorf("emptied %d bytes of a stream that goes on", n)
	}
	held := r.holdContent()
	r.finishStream()
	if n := r.dropContent(); n != 0 {
		t.Errorf("emptied %d bytes that are held for a reader", n)
	}
	r.endHold(held)
	rd, _ := r.addReader("", 2, false, make(chan struct{}, 1))
	if n := r.dropContent(); n != 0 {
		t.Errorf("emptied %d bytes that are being read", n)
	}
	if got, gap := drainReader(rd); string(got) != "llo" || gap != 0 {
		t.Errorf("the reader got %q, gap %d", got, gap)
	}
	rd.detachReader()
	if n := r.dropContent(); n != 5 || r.keptBytes() != 0 {
		t.Errorf("emptied %d bytes and kept %d, want 5 and 0", n, r.keptBytes())
	}
	rd, _ = r.addReader("", 2, false, make(chan struct{}, 1))
	if got, gap := drainReader(rd); len(got) > 0 || gap != 3 {
		t.Errorf("a late reader got %q, gap %d, want a gap of 3", got, gap)
	}
}

func BenchmarkRingWrite(b *testing.B) {
	r := newRing(atoll.DefaultOutputLimit)
	p := make([]byte, chunkSize)
	b.SetBytes(chunkSize)
	for b.Loop() {
		r.write(p)
	}
}

func TestRingHeldWaitsForItsFirstReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(4)
		r.holdContent()
		written := make(chan struct{})
		go func() {
			r.write([]byte("0123456789"))
			close(written)
		}()
		synctest.Wait()
		if st := r.streamStatus(); st.Written != 4 || st.Oldest != 0 {
			t.Errorf("held without a reader: status %+v, want 4 written, all kept", st)
		}
		rd, _ := r.addReader("", 0, false, make(chan struct{}, 1))
		var got []byte
		for len(got) < 10 {
			synctest.Wait()
			b, gap := drainReader(rd)
			if gap > 0 {
				t.Fatalf("a gap of %d bytes", gap)
			}
			got = append(got, b...)
		}
		<-written
		if string(got) != "0123456789" {
			t.Errorf("read %q", got)
		}
	})
}

func TestRingUnheldDropsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(4)
		held := r.holdContent()
		written := make(chan struct{})
		go func() {
			r.write([]byte("0123456789"))
			close(written)
		}()
		synctest.Wait()
		r.endHold(held)
		<-written
		if st := r.streamStatus(); st.Oldest != 6 {
			t.Errorf("status %+v, want the last 4 of 10 kept", st)
		}
	})
}

// A lost reader may have taken bytes that did not arrive: for a while the ring retains them,
// and all later bytes, for the reader that replaces it.
func TestRingKeepsForWhoWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, behind = 1 << 20, maxInFlight
		r := newRing(limit)
		printed := make(chan struct{})
		go func() {
			for range 3 * limit / 1024 {
				r.write(bytes.Repeat([]byte{'x'}, 1024))
			}
			close(printed)
		}()
		read := func(rd *reader, n int) (got int) {
			buf := make([]byte, 1024)
			for got < n {
				m, from, to, eof := rd.read(buf)
				if to > from {
					t.Fatalf("a gap [%d, %d)", from, to)
				}
				if got += m; eof || m == 0 {
					synctest.Wait()
				}
			}
			return got
		}
		const name = "reader"
		rd, _ := r.addReader(name, 0, false, make(chan struct{}, 1))
		read(rd, limit)
		rd.markLost(time.Minute)
		synctest.Wait()
		next, _ := r.addReader(name, limit-behind, false, make(chan struct{}, 1))
		if len(r.readers) != 1 {
			t.Fatalf("%d readers, want the one that came", len(r.readers))
		}
		read(next, limit)
		third, _ := r.addReader(name, limit, false, make(chan struct{}, 1)) // before the loss is noticed
		next.markLost(time.Minute)
		if len(r.readers) != 1 || !next.isReplaced() || third.isReplaced() {
			t.Fatalf("%d readers, want the one that came before the loss was noticed", len(r.readers))
		}
		begun := time.Now()
		third.markLost(time.Minute)
		third.markLost(time.Minute) // twice
		<-printed
		if waited := time.Since(begun); waited != time.Minute {
			t.Errorf("the writer waited %s for somebody who does not come, want 1m", waited)
		}
	})
}

// Readers that were lost together come again in any order, before or after the loss of
// the others is noticed, and miss nothing.
func TestRingTellsReadersApart(t *testing.T) {
	for _, noticed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 1 << 20
			r := newRing(limit)
			a, _ := r.addReader("a", 0, false, make(chan struct{}, 1))
			b, _ := r.addReader("b", 0, false, make(chan struct{}, 1))
			r.write(make([]byte, 200<<10))
			drainReader(a)
			drainReader(b)
			if noticed {
				a.markLost(time.Minute)
				b.markLost(time.Minute)
			}
			a2, _ := r.addReader("a", 100<<10, false, make(chan struct{}, 1))
			b2, _ := r.addReader("b", 50<<10, false, make(chan struct{}, 1))
			if !noticed {
				a.markLost(time.Minute)
				b.markLost(time.Minute)
			}
			a2.markLost(time.Minute)
			written := make(chan struct{})
			go func() {
				r.write(make([]byte, 3*limit))
				close(written)
			}()
			readOn := func() {
				synctest.Wait()
				if _, gap := drainReader(b2); gap > 0 {
					t.Errorf("noticed %v: the other one has a gap of %d bytes", noticed, gap)
				}
			}
			for range 8 {
				readOn()
			}
			a3, _ := r.addReader("a", 90<<10, false, make(chan struct{}, 1))
			if _, gap := drainReader(a3); gap > 0 {
				t.Errorf("noticed %v: it has a gap of %d bytes when it comes again", noticed, gap)
			}
			a3.detachReader()
			for range 8 {
				readOn()
			}
			<-written
		})
	}
}

// An additional reader from the beginning, or from now on, does not replace a reader: if
// that one is lost, the ring retains the bytes that it has not read.
func TestRingKeepsBesideOthers(t *testing.T) {
	for name, from := range map[string]int64{"start": 0, "now": atoll.FromNow} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 1 << 20
				r := newRing(limit)
				rd, _ := r.addReader("", 0, false, make(chan struct{}, 1))
				r.write(make([]byte, 1024))
				if got, _ := drainReader(rd); len(got) != 1024 {
					t.Fatalf("it reads %d bytes", len(got))
				}
				other, _ := r.addReader("", from, false, make(chan struct{}, 1))
				rd.markLost(time.Minute)
				other.detachReader()
				written := make(chan struct{})
				go func() {
					r.write(make([]byte, 2*limit))
					close(written)
				}()
				synctest.Wait()
				again, _ := r.addReader("", 1024, false, make(chan struct{}, 1))
				if _, gap := drainReader(again); gap > 0 {
					t.Errorf("it has a gap of %d bytes when it comes again", gap)
				}
				again.detachReader()
				<-written
			})
		})
	}
}
