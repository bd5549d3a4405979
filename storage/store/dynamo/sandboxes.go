package dynamo

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Attributes of a sandbox.
const (
	attrExternal = "external_id"
	attrMeta     = "meta_data"
	attrDeleted  = "deleted"
	attrLive     = "live" // the id, unless the sandbox is deleted; key of the index
)

// Attributes of attrMeta.
const (
	attrLastSync         = "last_s3_sync"
	attrSyncStats        = "sync_stats"
	attrSyncError        = "sync_error"
	attrVersion          = "version"
	attrFilesDownloaded  = "files_downloaded"
	attrFilesUploaded    = "files_uploaded"
	attrFilesDeleted     = "files_deleted"
	attrFilesSkipped     = "files_skipped"
	attrBytesTransferred = "bytes_transferred"
	attrDuration         = "duration_ms"
	attrConflicts        = "conflicts"
	attrFailed           = "failed"
)

func sandboxRef(account, id string) ref { return ref{sandboxesTable, account, id} }

func sandboxItem(x *store.AgentSandbox) item {
	meta := item{attrSyncError: textOf(x.Meta.SyncError), attrLastSync: numberOf(x.Meta.LastSync)}
	if s := x.Meta.SyncStats; s != nil {
		meta[attrSyncStats] = mapOf(item{
			attrVersion: numberOf(s.Version), attrFilesDownloaded: numberOf(int64(s.FilesDownloaded)), attrFilesUploaded: numberOf(int64(s.FilesUploaded)),
			attrFilesDeleted: numberOf(int64(s.FilesDeleted)), attrFilesSkipped: numberOf(int64(s.FilesSkipped)), attrBytesTransferred: numberOf(s.BytesTransferred),
			attrDuration: numberOf(s.Duration), attrConflicts: numberOf(int64(s.Conflicts)), attrFailed: numberOf(int64(s.Failed)),
		})
	}
	it := item{
		attrOrganization: textOf(x.Organization), attrAgent: textOf(x.Agent), attrTemplate: textOf(x.Template), attrExternal: textOf(x.External),
		attrConversationID: textOf(x.Conversation), attrMeta: mapOf(meta), attrCreated: timeOf(x.Created), attrDeleted: timeOf(x.Deleted), attrLive: nil,
	}
	if x.Deleted.IsZero() {
		it[attrLive] = textOf(x.ID)
	}
	return it
}

func readSandbox(f fields) (*store.AgentSandbox, error) {
	meta := f.subFields(attrMeta)
	x := &store.AgentSandbox{
		Sandbox: agent.Sandbox{
			ID: f.textField(attrID), Account: f.textField(attrAccount), Organization: f.textField(attrOrganization), Agent: f.textField(attrAgent), Template: f.textField(attrTemplate),
			External: f.textField(attrExternal), Conversation: f.textField(attrConversationID),
			Meta:    agent.SandboxMeta{LastSync: meta.numberField(attrLastSync), SyncError: meta.textField(attrSyncError)},
			Created: f.timeField(attrCreated), Deleted: f.timeField(attrDeleted),
		},
		Rev: f.numberField(attrRev),
	}
	if meta.hasField(attrSyncStats) {
		s := meta.subFields(attrSyncStats)
		count := func(name string) int { return int(s.numberField(name)) }
		x.Meta.SyncStats = &agent.SyncStats{
			Version: s.numberField(attrVersion), FilesDownloaded: count(attrFilesDownloaded), FilesUploaded: count(attrFilesUploaded),
			FilesDeleted: count(attrFilesDeleted), FilesSkipped: count(attrFilesSkipped), BytesTransferred: s.numberField(attrBytesTransferred),
			Duration: s.numberField(attrDuration), Conflicts: count(attrConflicts), Failed: count(attrFailed),
		}
	}
	return x, *f.err
}

// InsertSandbox implements store.Conversations.
func (s *Store) InsertSandbox(ctx context.Context, x *store.AgentSandbox) error {
	const op = "insert sandbox"
	if err := store.CheckSandbox(op, x); err != nil {
		return err
	}
	rev, err := s.insertRecord(ctx, sandboxRef(x.Account, x.ID), sandboxItem(x))
	if err != nil {
		return s.wrapError(ctx, op, x.ID, err)
	}
	x.Rev = rev
	return nil
}

// UpdateSandbox implements store.Conversations.
func (s *Store) UpdateSandbox(ctx context.Context, x *store.AgentSandbox) error {
	const op = "update sandbox"
	if err := store.CheckSandbox(op, x); err != nil {
		return err
	}
	var e expr
	e.setFields(sandboxItem(x))
	if err := s.changeRecord(ctx, sandboxRef(x.Account, x.ID), x.Rev, &e); err != nil {
		return s.wrapError(ctx, op, x.ID, err)
	}
	x.Rev++
	return nil
}

// DeleteSandbox implements store.Conversations.
func (s *Store) DeleteSandbox(ctx context.Context, x *store.AgentSandbox) error {
	return s.wrapError(ctx, "delete sandbox", x.ID, s.deleteRecord(ctx, sandboxRef(x.Account, x.ID), x.Rev, attrLive))
}

// FindSandbox implements store.Conversations.
func (s *Store) FindSandbox(ctx context.Context, account, id string) (*store.AgentSandbox, error) {
	const op = "find sandbox"
	it, err := s.findRecord(ctx, sandboxRef(account, id))
	if err == nil && it == nil {
		err = atoll.Errorf("", "", atoll.ErrNotExist, "no such sandbox")
	}
	if err != nil {
		return nil, s.wrapError(ctx, op, id, err)
	}
	x, err := readSandbox(fieldsOf(it))
	return x, s.wrapError(ctx, op, id, err)
}

// Sandboxes implements store.Conversations.
func (s *Store) Sandboxes(ctx context.Context, account string, page store.Page) (all []*store.AgentSandbox, err error) {
	const op = "sandboxes"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	err = s.listRecords(ctx, sandboxesTable, liveIndex, account, page, func(f fields) error {
		x, err := readSandbox(f)
		all = append(all, x)
		return err
	})
	if err != nil {
		return nil, s.wrapError(ctx, op, "", err)
	}
	return all, nil
}
