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
type store struct {
	service *service
	name    string

	mu       sync.Mutex
	dict     string            // its id, once it is known
	lastSeen map[string]uint64 // the last page seen of each subject
}

func newStore(s *service, name string) *store {
	return &store{service: s, name: name, lastSeen: map[string]uint64{}}
}

// The kinds of subjects.
const (
	kindSandbox  = "s"
	kindName     = "n"
	kindVolume   = "v"
	kindSnapshot = "i" // an image
)

// A page is what is written of a subject. The last one holds.
type revision struct {
	Written time.Time       `json:"written"`
	Writer  string          `json:"by,omitempty"`    // tells it from what another has written as this page
	Deleted bool            `json:"over,omitempty"`  // the subject is no more
	Spent   bool            `json:"spent,omitempty"` // another one has been written after it
	Value   json.RawMessage `json:"text,omitempty"`

	Number uint64    `json:"-"`
	readAt time.Time // since when it may be out of date, by wall

	// Of those before it, as all has read them.
	unmarked []*revision // not marked as spent
	spent    []*revision
}

// wallTime is the time by a clock that goes on while the machine sleeps, as the monotonic one
// does not: others have turned pages and forgotten subjects meanwhile.
func wallTime() time.Time { return time.Now().Round(0) }

// isStale reports whether what was read is too old to be gone by.
func (at *revision) isStale() bool { return time.Since(at.readAt) > staleAfter }

func subjectKey(kind, key string) string { return kind + "/" + key }

func revisionKey(subject string, number uint64) []byte {
	return fmt.Appendf(nil, "%s/%d", subject, number)
}

// errWrittenElsewhere says that somebody else has written the page.
var errWrittenElsewhere = errors.New("somebody else has changed it")

// dictID is the Dict's, which is made when it is missing.
func (b *store) dictID(ctx context.Context) (string, error) {
	b.mu.Lock()
	id := b.dict
	b.mu.Unlock()
	if id != "" {
		return id, nil
	}
	resp, err := b.service.pb.DictGetOrCreate(ctx, pb.DictGetOrCreateRequest_builder{
		DeploymentName: b.name, EnvironmentName: b.service.environmentName(),
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

// withDict calls do with the Dict's id, and once more with another one's if it is gone: what
// was in it is, too.
func (b *store) withDict(ctx context.Context, do func(dict string) error) error {
	for try := 0; ; try++ {
		dict, err := b.dictID(ctx)
		if err != nil {
			return err
		}
		if err = do(dict); try > 0 || !isCode(err, codes.NotFound) {
			return err
		}
		b.mu.Lock()
		if b.dict == dict {
			b.dict = ""
			clear(b.lastSeen)
		}
		b.mu.Unlock()
	}
}

// noteRevision notes that a page of a subject is there.
func (b *store) noteRevision(subject string, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastSeen[subject] = max(number, b.lastSeen[subject])
}

// knownRevision is the last page that was seen of a subject; 0 if none was.
func (b *store) knownRevision(subject string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lastSeen[subject]
}

// forgetRevision forgets that there were pages of a subject.
func (b *store) forgetRevision(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lastSeen, subject)
}

// readValue is the last page of a subject, whose text is read into v; nil if there is none, or
// it is no more.
func (b *store) readValue(ctx context.Context, kind, key string, v any) (*revision, error) {
	at, err := b.readLatest(ctx, subjectKey(kind, key))
	if at == nil || at.Deleted || err != nil {
		return nil, err
	}
	return at, json.Unmarshal(at.Value, v)
}

// readLatest is the last page of a subject; nil if it has none. It begins where it knows one, and
// finds the others behind it; only where those are gone it has to ask for all.
func (b *store) readLatest(ctx context.Context, subject string) (*revision, error) {
	known := b.knownRevision(subject)
	from := max(known, 1)
	at, err := b.readRevision(ctx, subject, from)
	if err != nil {
		return nil, err
	}
	if at == nil || at.Spent {
		hint, err := b.readHint(ctx, subject)
		if err != nil {
			return nil, err
		}
		if at == nil && hint == 0 {
			b.forgetRevision(subject)
			if known > 1 { // forgotten, and perhaps begun anew
				return b.readLatest(ctx, subject)
			}
			return nil, nil
		}
		from = max(from, hint)
	}
	last, err := b.followRevisions(ctx, subject, from)
	if last != nil || err != nil {
		return last, err
	}
	all, err := b.readAllLatest(ctx)
	return all[subject], err
}

// followRevisions is the last page of those from number on; nil if that is not there.
func (b *store) followRevisions(ctx context.Context, subject string, number uint64) (last *revision, err error) {
	for {
		at, err := b.readRevision(ctx, subject, number)
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
		b.noteRevision(subject, last.Number)
	}
	return last, nil
}

// readRevision is a page; nil if it is not there.
func (b *store) readRevision(ctx context.Context, subject string, number uint64) (*revision, error) {
	at := &revision{Number: number, readAt: wallTime()}
	value, err := b.readEntry(ctx, revisionKey(subject, number))
	if value == nil || err != nil {
		return nil, err
	}
	at.decodeFrom(value)
	return at, nil
}

// decodeFrom reads a page. One that is damaged has no text, and whoever reads that says so.
func (at *revision) decodeFrom(value []byte) {
	if json.Unmarshal(value, at) != nil {
		*at = revision{Number: at.Number, readAt: at.readAt}
	}
}

// readEntry is what the Dict has under a key; nil if nothing.
func (b *store) readEntry(ctx context.Context, key []byte) ([]byte, error) {
	var resp *pb.DictGetResponse
	err := b.withDict(ctx, func(dict string) (err error) {
		resp, err = b.service.pb.DictGet(ctx, pb.DictGetRequest_builder{DictId: dict, Key: key}.Build())
		return err
	})
	if err != nil || !resp.GetFound() {
		return nil, err
	}
	return resp.GetValue(), nil
}

// readHint is a page that there was at some time; 0 if none is known.
func (b *store) readHint(ctx context.Context, subject string) (uint64, error) {
	value, err := b.readEntry(ctx, hintKey(subject))
	if value == nil || err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(value), 10, 64)
}

func hintKey(subject string) []byte { return []byte("h/" + subject) }

// writeNext writes v as the page after that one, which is nil for a subject without any. A nil
// v says that the subject is no more. It returns the page. Errors: errTurned.
func (b *store) writeNext(ctx context.Context, kind, key string, after *revision, v any) (*revision, error) {
	at := &revision{Number: 1, Written: time.Now().UTC(), Writer: atoll.NewID(), Deleted: v == nil, readAt: wallTime()}
	if after != nil {
		if after.isStale() {
			return nil, errWrittenElsewhere // for all that is known
		}
		at.Number = after.Number + 1
	}
	if v != nil {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		at.Value = text
	}
	text, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	of := subjectKey(kind, key)
	made, err := b.updateDict(ctx, true, newEntry(revisionKey(of, at.Number), text))
	if err != nil {
		return nil, err
	}
	if !made { // unless it is ours: an answer may be lost, and the page be sent again
		there, err := b.readRevision(ctx, of, at.Number)
		if err != nil {
			return nil, err
		}
		if there == nil || there.Writer != at.Writer {
			return nil, errWrittenElsewhere
		}
	}
	b.noteRevision(of, at.Number)
	if after != nil {
		_ = b.markSpent(ctx, of, after, at.Number) // else keep does it
	}
	return at, nil
}

// markSpent marks the page as spent that does not hold any more, and leaves a hint for those who
// know only that one, or none.
func (b *store) markSpent(ctx context.Context, subject string, old *revision, now uint64) error {
	text, err := json.Marshal(&revision{Written: time.Now().UTC(), Writer: old.Writer, Spent: true}) // whose answer was lost is to know it
	if err != nil {
		return err
	}
	_, err = b.updateDict(ctx, false, newEntry(revisionKey(subject, old.Number), text), newHintEntry(subject, now))
	return err
}

func newEntry(key, value []byte) *pb.DictEntry {
	return pb.DictEntry_builder{Key: key, Value: value}.Build()
}

func newHintEntry(subject string, number uint64) *pb.DictEntry {
	return newEntry(hintKey(subject), strconv.AppendUint(nil, number, 10))
}

// updateDict writes entries. If onlyNew, it does so unless there is one under that key, and
// reports whether it has.
func (b *store) updateDict(ctx context.Context, onlyNew bool, entries ...*pb.DictEntry) (made bool, err error) {
	err = b.withDict(ctx, func(dict string) error {
		resp, err := b.service.pb.DictUpdate(ctx, pb.DictUpdateRequest_builder{DictId: dict, IfNotExists: onlyNew, Updates: entries}.Build())
		made = resp.GetCreated() || !onlyNew
		return err
	})
	return made, err
}

func (b *store) deleteEntry(ctx context.Context, key []byte) error {
	return b.withDict(ctx, func(dict string) error {
		_, err := b.service.pb.DictPop(ctx, pb.DictPopRequest_builder{DictId: dict, Key: key}.Build())
		return err
	})
}
