package server

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/protobuf/types/known/timestamppb"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/files"
	"humanwork.internal/services/agentfs/internal/namespace"
)

// maxScanned bounds the records one page looks at: of those that are not public a page is short,
// or empty, and there is a next one.
const maxScanned = 20_000

// view is what an audit shows: of a conversation its public files, else all.
type view struct {
	conversation string
	project      agentfs.Ino
}

// audit authorizes and runs fn with the database and what of it is to be seen.
func (s *Server) audit(ctx context.Context, r conversationNamer, fn func(*agentfs.FS, view) error) error {
	if r.GetConversationId() == "" {
		if p, _ := rpc.PrincipalFrom(ctx); !slices.Contains(p.Roles, rpc.RoleAdmin) {
			return errs.New(errs.Denied, rpc.ReasonDenied, "only administrators see a whole organization's ledger; name a conversation")
		}
		return s.cfg.Store.With(ctx, r.GetOrganizationId(), func(fs *agentfs.FS) error { return fn(fs, view{}) })
	}
	return s.within(ctx, r, func(t files.Tree) error {
		home, err := t.FS.Resolve(ctx, namespace.Home(r.GetConversationId()))
		if err != nil {
			return fault.From(err, "the conversation's directory")
		}
		return fn(t.FS, view{r.GetConversationId(), home.Ino})
	})
}

// shown is the path as the view's audience knows it; ok is false for one that is not theirs.
func (v view) shown(private string) (path string, ok bool) {
	if v.conversation == "" {
		return private, true
	}
	c, p, ok := namespace.Public(private)
	if !ok || c != v.conversation {
		return "", false
	}
	return p.String(), true
}

// record converts a record; nil if it is not to be seen.
func (v view) record(r agentfs.Record) *agentfsv1.LedgerRecord {
	path, public := v.shown(r.Path)
	target := r.Target
	switch r.Action {
	case agentfs.ActionRename, agentfs.ActionExchange, agentfs.ActionLink:
		var also bool
		target, also = v.shown(r.Target)
		public = public || also
	}
	if !public || v.conversation != "" && r.Action == agentfs.ActionTool {
		return nil
	}
	out := &agentfsv1.LedgerRecord{Position: r.Position, Time: timestamppb.New(r.Time), Actor: r.Actor, Action: r.Action,
		Path: path, Target: target, Inode: int64(r.Ino), Size: r.Size, Hash: hex.EncodeToString(r.Hash), Writer: r.Writer, Sequence: r.Sequence}
	if r.Version != 0 {
		out.Version = files.Version(r.Ino, r.Version)
	}
	return out
}

func (v view) filter(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if v.conversation == "" {
		if !strings.HasPrefix(path, "/") {
			return "", errs.New(errs.Invalid, fault.InvalidPath, "a path of the whole database begins with a slash")
		}
		return path, nil
	}
	private, err := namespace.Below(v.conversation, strings.TrimSuffix(path, "/"))
	if err != nil {
		return "", errs.New(errs.Invalid, fault.InvalidPath, "%v", err)
	}
	return private, nil
}

// fromCore is fault.From for what was asked of the ledger.
func fromCore(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return errs.Wrap(err, errs.Invalid, fault.InvalidPath, "the path is not valid")
	}
	return fault.From(err, "the ledger")
}

// ListTimeline implements the contract.
func (s *Server) ListTimeline(ctx context.Context, r *agentfsv1.ListTimelineRequest) (*agentfsv1.ListTimelineResponse, error) {
	after, err := afterOf(r.GetAfter(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	out := &agentfsv1.ListTimelineResponse{}
	err = s.audit(ctx, r, func(fs *agentfs.FS, v view) error {
		path, err := v.filter(r.GetPath())
		if err != nil {
			return err
		}
		size := pageSize(r.GetPageSize())
		for scanned := 0; scanned < maxScanned; {
			// One more than the page tells whether there is a next one.
			limit := min(size+1, agentfs.MaxRecords)
			records, err := fs.Timeline(ctx, agentfs.Query{Project: v.project, Path: path, After: after, Limit: limit})
			if err != nil {
				return fromCore(err)
			}
			for _, record := range records {
				if shown := v.record(record); shown != nil {
					if len(out.Records) == size {
						out.NextPageToken = token(after)
						return nil
					}
					out.Records = append(out.Records, shown)
				}
				after = record.Position
			}
			if len(records) < limit {
				return nil
			}
			scanned += len(records)
		}
		out.NextPageToken = token(after)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DiffFiles implements the contract.
func (s *Server) DiffFiles(ctx context.Context, r *agentfsv1.DiffFilesRequest) (*agentfsv1.DiffFilesResponse, error) {
	from, to, done := r.GetFrom(), r.GetTo(), 0
	if r.GetPageToken() != "" {
		// The points stay those of the first page.
		raw, err := base64.RawURLEncoding.Strict().DecodeString(r.GetPageToken())
		if err == nil {
			_, err = fmt.Sscanf(string(raw), "%d-%d-%d", &from, &to, &done)
		}
		if err != nil || from < 0 || to <= 0 || done <= 0 {
			return nil, badToken()
		}
	}
	out := &agentfsv1.DiffFilesResponse{}
	err := s.audit(ctx, r, func(fs *agentfs.FS, v view) error {
		list, from, to, err := fs.Diff(ctx, v.project, from, to)
		if err != nil {
			return fromCore(err)
		}
		var shown []*agentfsv1.Difference
		for _, d := range list {
			if one := v.difference(d); one != nil {
				shown = append(shown, one)
			}
		}
		slices.SortStableFunc(shown, func(a, b *agentfsv1.Difference) int { return strings.Compare(a.Path, b.Path) })
		if done > len(shown) {
			return badToken()
		}
		end := min(done+pageSize(r.GetPageSize()), len(shown))
		out.Differences, out.From, out.To = shown[done:end], from, to
		if end < len(shown) {
			out.NextPageToken = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d-%d-%d", from, to, end))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

var kinds = map[agentfs.DifferenceKind]agentfsv1.Difference_Kind{
	agentfs.Added: agentfsv1.Difference_KIND_ADDED, agentfs.Modified: agentfsv1.Difference_KIND_MODIFIED,
	agentfs.Removed: agentfsv1.Difference_KIND_REMOVED, agentfs.Renamed: agentfsv1.Difference_KIND_RENAMED,
}

// difference converts one; nil if it is not to be seen. What came from or went to a private
// directory appeared or disappeared.
func (v view) difference(d agentfs.Difference) *agentfsv1.Difference {
	out := &agentfsv1.Difference{Kind: kinds[d.Kind], Directory: d.Directory}
	path, here := v.shown(d.Path)
	if d.Kind != agentfs.Renamed {
		if !here {
			return nil
		}
		out.Path = path
		return out
	}
	previous, there := v.shown(d.Previous)
	switch {
	case here && there:
		out.Path, out.PreviousPath = path, previous
	case here:
		out.Kind, out.Path = agentfsv1.Difference_KIND_ADDED, path
	case there:
		out.Kind, out.Path = agentfsv1.Difference_KIND_REMOVED, previous
	default:
		return nil
	}
	return out
}

// ListToolCalls implements the contract.
func (s *Server) ListToolCalls(ctx context.Context, r *agentfsv1.ListToolCallsRequest) (*agentfsv1.ListToolCallsResponse, error) {
	after, err := afterOf(0, r.GetPageToken())
	if err != nil {
		return nil, err
	}
	out := &agentfsv1.ListToolCallsResponse{}
	err = s.audit(ctx, r, func(fs *agentfs.FS, v view) error {
		size := pageSize(r.GetPageSize())
		calls, err := fs.ToolCalls(ctx, agentfs.Query{Project: v.project, After: after, Limit: min(size+1, agentfs.MaxRecords)})
		if err != nil {
			return fromCore(err)
		}
		for i, c := range calls {
			if i == size {
				break
			}
			one := &agentfsv1.ToolCall{Id: c.ID, Name: c.Name, Parameters: c.Parameters, Result: c.Result, Error: c.Error,
				Status: c.Status, StartTime: timestamppb.New(c.Started), DurationMs: c.Duration.Milliseconds()}
			if !c.Completed.IsZero() {
				one.EndTime = timestamppb.New(c.Completed)
			}
			out.ToolCalls = append(out.ToolCalls, one)
			after = c.Position
		}
		if len(calls) > size || len(calls) == agentfs.MaxRecords {
			out.NextPageToken = token(after)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// A token of the ledger is the position that the page before ended with.
func token(after int64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d", after))
}

func afterOf(after int64, token string) (int64, error) {
	if token == "" {
		return after, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err == nil {
		_, err = fmt.Sscanf(string(raw), "%d", &after)
	}
	if err != nil || after < 0 {
		return 0, badToken()
	}
	return after, nil
}

func badToken() error {
	return errs.New(errs.Invalid, fault.InvalidPageToken, "the page token is not one of this listing's")
}
