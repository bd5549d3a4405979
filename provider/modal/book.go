package modal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
)

// A book is what is written down, in a Dict of Modal's. A Dict can write what is not there
// yet, and tells whether it did; it cannot replace what is there only if nobody else has.
// So a change is written as the next page of its subject, and of two who change the same
// one, one writes that page and the other is told. The page before is marked as spent, and
// stays for longer than anybody goes by it: if it could be written once more, nobody would
// be told.
//
// An entry of a Dict is forgotten seven days after it was last written or read. The book is
// written anew from time to time, by any program that runs: see keep.
type book struct {
	service *service
	name    string

	mu   sync.Mutex
	dict string            // its id, once it is known
	last map[string]uint64 // the last page seen of each subject
}

func newBook(s *service, name string) *book {
	return &book{service: s, name: name, last: map[string]uint64{}}
}

// The kinds of subjects.
const (
	kindSandbox  = "s"
	kindName     = "n"
	kindVolume   = "v"
	kindSnapshot = "i" // an image
)

// A page is what is written of a subject. The last one holds.
type page struct {
	Written time.Time       `json:"written"`
	By      string          `json:"by,omitempty"`    // tells it from what another has written as this page
	Over    bool            `json:"over,omitempty"`  // the subject is no more
	Spent   bool            `json:"spent,omitempty"` // another one has been written after it
	Text    json.RawMessage `json:"text,omitempty"`

	Number uint64    `json:"-"`
	read   time.Time // since when it may be out of date, by wall

	// Of those before it, as all has read them.
	behind []*page // not marked as spent
	spent  []*page
}

// wall is the time by a clock that goes on while the machine sleeps, as the monotonic one
// does not: others have turned pages and forgotten subjects meanwhile.
func wall() time.Time { return time.Now().Round(0) }

// stale reports whether what was read is too old to be gone by.
func (at *page) stale() bool { return time.Since(at.read) > staleAfter }

func subject(kind, key string) string { return kind + "/" + key }

func entryKey(subject string, number uint64) []byte {
	return fmt.Appendf(nil, "%s/%d", subject, number)
}

// errTurned says that somebody else has written the page.
var errTurned = errors.New("somebody else has changed it")

// id is the Dict's, which is made when it is missing.
func (b *book) id(ctx context.Context) (string, error) {
	b.mu.Lock()
	id := b.dict
	b.mu.Unlock()
	if id != "" {
		return id, nil
	}
	resp, err := b.service.pb.DictGetOrCreate(ctx, pb.DictGetOrCreateRequest_builder{
		DeploymentName: b.name, EnvironmentName: b.service.environment(),
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING,
	}.Build())
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	b.dict = resp.GetDictId()
	b.mu.Unlock()
	return resp.GetDictId(), nil
}

// ask calls do with the Dict's id, and once more with another one's if it is gone: what
// was in it is, too.
func (b *book) ask(ctx context.Context, do func(dict string) error) error {
	for try := 0; ; try++ {
		dict, err := b.id(ctx)
		if err != nil {
			return err
		}
		if err = do(dict); try > 0 || !isCode(err, codes.NotFound) {
			return err
		}
		b.mu.Lock()
		if b.dict == dict {
			b.dict = ""
			clear(b.last)
		}
		b.mu.Unlock()
	}
}

// seen notes that a page of a subject is there.
func (b *book) seen(subject string, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last[subject] = max(number, b.last[subject])
}

// known is the last page that was seen of a subject; 0 if none was.
func (b *book) known(subject string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last[subject]
}

// unsee forgets that there were pages of a subject.
func (b *book) unsee(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.last, subject)
}

// read is the last page of a subject, whose text is read into v; nil if there is none, or
// it is no more.
func (b *book) read(ctx context.Context, kind, key string, v any) (*page, error) {
	at, err := b.turn(ctx, subject(kind, key))
	if at == nil || at.Over || err != nil {
		return nil, err
	}
	return at, json.Unmarshal(at.Text, v)
}

// turn is the last page of a subject; nil if it has none. It begins where it knows one, and
// finds the others behind it; only where those are gone it has to ask for all.
func (b *book) turn(ctx context.Context, subject string) (*page, error) {
	known := b.known(subject)
	from := max(known, 1)
	at, err := b.get(ctx, subject, from)
	if err != nil {
		return nil, err
	}
	if at == nil || at.Spent {
		hint, err := b.hint(ctx, subject)
		if err != nil {
			return nil, err
		}
		if at == nil && hint == 0 {
			b.unsee(subject)
			if known > 1 { // forgotten, and perhaps begun anew
				return b.turn(ctx, subject)
			}
			return nil, nil
		}
		from = max(from, hint)
	}
	last, err := b.follow(ctx, subject, from)
	if last != nil || err != nil {
		return last, err
	}
	all, err := b.all(ctx)
	return all[subject], err
}

// follow is the last page of those from number on; nil if that is not there.
func (b *book) follow(ctx context.Context, subject string, number uint64) (last *page, err error) {
	for {
		at, err := b.get(ctx, subject, number)
		if err != nil {
			return nil, err
		}
		if at == nil {
			break
		}
		if !at.Spent {
			last = at
		}
		number++
	}
	if last != nil {
		b.seen(subject, last.Number)
	}
	return last, nil
}

// get is a page; nil if it is not there.
func (b *book) get(ctx context.Context, subject string, number uint64) (*page, error) {
	at := &page{Number: number, read: wall()}
	value, err := b.value(ctx, entryKey(subject, number))
	if value == nil || err != nil {
		return nil, err
	}
	at.decode(value)
	return at, nil
}

// decode reads a page. One that is damaged has no text, and whoever reads that says so.
func (at *page) decode(value []byte) {
	if json.Unmarshal(value, at) != nil {
		*at = page{Number: at.Number, read: at.read}
	}
}

// value is what the Dict has under a key; nil if nothing.
func (b *book) value(ctx context.Context, key []byte) ([]byte, error) {
	var resp *pb.DictGetResponse
	err := b.ask(ctx, func(dict string) (err error) {
		resp, err = b.service.pb.DictGet(ctx, pb.DictGetRequest_builder{DictId: dict, Key: key}.Build())
		return err
	})
	if err != nil || !resp.GetFound() {
		return nil, err
	}
	return resp.GetValue(), nil
}

// hint is a page that there was at some time; 0 if none is known.
func (b *book) hint(ctx context.Context, subject string) (uint64, error) {
	value, err := b.value(ctx, hintKey(subject))
	if value == nil || err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(value), 10, 64)
}

func hintKey(subject string) []byte { return []byte("h/" + subject) }

// write writes v as the page after that one, which is nil for a subject without any. A nil
// v says that the subject is no more. It returns the page. Errors: errTurned.
func (b *book) write(ctx context.Context, kind, key string, after *page, v any) (*page, error) {
	at := &page{Number: 1, Written: time.Now().UTC(), By: atoll.NewID(), Over: v == nil, read: wall()}
	if after != nil {
		if after.stale() {
			return nil, errTurned // for all that is known
		}
		at.Number = after.Number + 1
	}
	if v != nil {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		at.Text = text
	}
	text, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	of := subject(kind, key)
	made, err := b.update(ctx, true, entry(entryKey(of, at.Number), text))
	if err != nil {
		return nil, err
	}
	if !made { // unless it is ours: an answer may be lost, and the page be sent again
		there, err := b.get(ctx, of, at.Number)
		if err != nil {
			return nil, err
		}
		if there == nil || there.By != at.By {
			return nil, errTurned
		}
	}
	b.seen(of, at.Number)
	if after != nil {
		_ = b.tidy(ctx, of, after, at.Number) // else keep does it
	}
	return at, nil
}

// tidy marks the page as spent that does not hold any more, and leaves a hint for those who
// know only that one, or none.
func (b *book) tidy(ctx context.Context, subject string, old *page, now uint64) error {
	text, err := json.Marshal(&page{Written: time.Now().UTC(), By: old.By, Spent: true}) // whose answer was lost is to know it
	if err != nil {
		return err
	}
	_, err = b.update(ctx, false, entry(entryKey(subject, old.Number), text), hintEntry(subject, now))
	return err
}

func entry(key, value []byte) *pb.DictEntry {
	return pb.DictEntry_builder{Key: key, Value: value}.Build()
}

func hintEntry(subject string, number uint64) *pb.DictEntry {
	return entry(hintKey(subject), strconv.AppendUint(nil, number, 10))
}

// update writes entries. If onlyNew, it does so unless there is one under that key, and
// reports whether it has.
func (b *book) update(ctx context.Context, onlyNew bool, entries ...*pb.DictEntry) (made bool, err error) {
	err = b.ask(ctx, func(dict string) error {
		resp, err := b.service.pb.DictUpdate(ctx, pb.DictUpdateRequest_builder{DictId: dict, IfNotExists: onlyNew, Updates: entries}.Build())
		made = resp.GetCreated() || !onlyNew
		return err
	})
	return made, err
}

func (b *book) drop(ctx context.Context, key []byte) error {
	return b.ask(ctx, func(dict string) error {
		_, err := b.service.pb.DictPop(ctx, pb.DictPopRequest_builder{DictId: dict, Key: key}.Build())
		return err
	})
}
