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

// A store records the state of subjects in a Dict of Modal. A Dict can create an entry and
// report whether it did so; it cannot make a replacement depend on the old value. So each change
// of a subject is a new revision, and of two programs that write the same revision, one
// succeeds and the other gets an error. The writer then marks the revision before as spent.
// That stays for longer than any program relies on it: if its key were free, a late program
// could write it again without an error.
//
// A Dict forgets an entry seven days after the last write or read. Every running program
// rewrites the entries from time to time: see refreshAll.
type store struct {
	service *service
	name    string

	mu       sync.Mutex
	dict     string            // id of the Dict; empty until it is known
	lastSeen map[string]uint64 // the latest known revision of each subject
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

// A revision is one state of a subject. The latest one is valid.
type revision struct {
	Written time.Time       `json:"written"`
	Writer  string          `json:"by,omitempty"`    // random id, to tell it from another program's attempt at the same revision
	Deleted bool            `json:"over,omitempty"`  // the subject was removed
	Spent   bool            `json:"spent,omitempty"` // a later revision exists
	Value   json.RawMessage `json:"text,omitempty"`

	Number uint64    `json:"-"`
	readAt time.Time // time of the read, by wallTime

	// Earlier revisions, as readAllLatest has found them.
	unmarked []*revision // not marked as spent
	spent    []*revision
}

// wallTime returns the time without the monotonic clock, which stands still while the machine
// sleeps: other programs write and delete revisions meanwhile.
func wallTime() time.Time { return time.Now().Round(0) }

// isStale reports whether the revision was read too long ago to rely on it.
func (at *revision) isStale() bool { return time.Since(at.readAt) > staleAfter }

func subjectKey(kind, key string) string { return kind + "/" + key }

func revisionKey(subject string, number uint64) []byte {
	return fmt.Appendf(nil, "%s/%d", subject, number)
}

// errWrittenElsewhere reports that another program has written the revision.
var errWrittenElsewhere = errors.New("somebody else has changed it")

// dictID returns the id of the Dict, and creates the Dict if it does not exist.
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

// withDict calls do with the Dict's id. If the Dict is gone, with all its entries, it calls do
// once more with a new one.
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

// noteRevision notes that a revision of a subject exists.
func (b *store) noteRevision(subject string, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastSeen[subject] = max(number, b.lastSeen[subject])
}

// knownRevision returns the latest known revision of a subject; 0 if none is known.
func (b *store) knownRevision(subject string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lastSeen[subject]
}

// forgetRevision forgets the known revision of a subject.
func (b *store) forgetRevision(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lastSeen, subject)
}

// readValue reads the latest revision of a subject and decodes its value into v. It returns nil
// if the subject has no revision or was removed.
func (b *store) readValue(ctx context.Context, kind, key string, v any) (*revision, error) {
	at, err := b.readLatest(ctx, subjectKey(kind, key))
	if at == nil || at.Deleted || err != nil {
		return nil, err
	}
	return at, json.Unmarshal(at.Value, v)
}

// readLatest returns the latest revision of a subject; nil if it has none. It starts at the
// latest known one and looks for later ones; only if those are gone, it reads all entries.
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
			if known > 1 { // deleted, and perhaps created again
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

// followRevisions returns the latest revision from number on; nil if that one does not exist.
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

// readRevision returns a revision; nil if it does not exist.
func (b *store) readRevision(ctx context.Context, subject string, number uint64) (*revision, error) {
	at := &revision{Number: number, readAt: wallTime()}
	value, err := b.readEntry(ctx, revisionKey(subject, number))
	if value == nil || err != nil {
		return nil, err
	}
	at.decodeFrom(value)
	return at, nil
}

// decodeFrom decodes a revision. A damaged one has no value, which decoding the value reports.
func (at *revision) decodeFrom(value []byte) {
	if json.Unmarshal(value, at) != nil {
		*at = revision{Number: at.Number, readAt: at.readAt}
	}
}

// readEntry returns the Dict's value for a key; nil if it has none.
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

// readHint returns a revision that a subject once had; 0 if none is known.
func (b *store) readHint(ctx context.Context, subject string) (uint64, error) {
	value, err := b.readEntry(ctx, hintKey(subject))
	if value == nil || err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(value), 10, 64)
}

func hintKey(subject string) []byte { return []byte("h/" + subject) }

// writeNext writes v as the revision after the given one, which is nil for a subject without
// any, and returns the new one. A nil v removes the subject. Errors: errWrittenElsewhere.
func (b *store) writeNext(ctx context.Context, kind, key string, after *revision, v any) (*revision, error) {
	at := &revision{Number: 1, Written: time.Now().UTC(), Writer: atoll.NewID(), Deleted: v == nil, readAt: wallTime()}
	if after != nil {
		if after.isStale() {
			return nil, errWrittenElsewhere // another program may have written since
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
	if !made { // unless it is ours: if an answer was lost, the client sends the request again
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
		_ = b.markSpent(ctx, of, after, at.Number) // if it fails, refreshAll does it
	}
	return at, nil
}

// markSpent marks an outdated revision as spent, and leaves a hint for programs that know only
// that one or none.
func (b *store) markSpent(ctx context.Context, subject string, old *revision, now uint64) error {
	text, err := json.Marshal(&revision{Written: time.Now().UTC(), Writer: old.Writer, Spent: true}) // a writer whose answer was lost recognizes it
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

// updateDict writes entries. With onlyNew it writes only if the key is free, and reports
// whether it did.
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
