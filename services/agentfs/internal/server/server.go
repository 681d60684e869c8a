// Package server is agentfs's gRPC surface: it checks, calls and converts.
package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/authority"
	"humanwork.internal/services/agentfs/internal/files"
	"humanwork.internal/services/agentfs/internal/home"
	"humanwork.internal/services/agentfs/internal/store"
)

// Policy says who may call what. Routing establishes. Private files hold credentials, so no one but
// the supervisor reads them. Ingress holds the files of turns and reads what it rebuilds of them; in
// all else it speaks for whom it acts. Whole databases are the administrators'.
func Policy() rpc.Policy {
	people := []string{rpc.RoleMember, rpc.RoleAdmin}
	ingress := rpc.RoleService + "ingress"
	return rpc.Policy{}.
		Allow([]string{rpc.RoleService + "routing"},
			agentfsv1.EstablishmentService_ProvisionOrganization_FullMethodName,
			agentfsv1.EstablishmentService_EstablishConversation_FullMethodName).
		Allow([]string{rpc.RoleService + "supervisor"},
			agentfsv1.EstablishmentService_GetConversationHome_FullMethodName).
		Allow(people,
			agentfsv1.FileService_WriteFile_FullMethodName,
			agentfsv1.FileService_StatFile_FullMethodName,
			agentfsv1.FileService_DeleteFile_FullMethodName,
			agentfsv1.FileService_ListFiles_FullMethodName,
			agentfsv1.AuditService_ListTimeline_FullMethodName,
			agentfsv1.AuditService_DiffFiles_FullMethodName,
			agentfsv1.AuditService_ListToolCalls_FullMethodName).
		Allow(append(people, ingress), agentfsv1.FileService_ReadFile_FullMethodName).
		Allow([]string{ingress},
			agentfsv1.HoldService_HoldFiles_FullMethodName,
			agentfsv1.HoldService_ReleaseFiles_FullMethodName).
		Allow([]string{rpc.RoleAdmin},
			agentfsv1.BackupService_CheckOrganization_FullMethodName,
			agentfsv1.BackupService_CreateSnapshot_FullMethodName,
			agentfsv1.BackupService_ListSnapshots_FullMethodName,
			agentfsv1.BackupService_DeleteSnapshot_FullMethodName,
			agentfsv1.BackupService_ExportOrganization_FullMethodName,
			agentfsv1.BackupService_RestoreOrganization_FullMethodName)
}

// Meter counts what passes.
type Meter interface {
	Received(bytes int)
	Sent(bytes int)
}

// Config is what a server works with.
type Config struct {
	Store     *store.Store
	Authority *authority.Authority
	Holds     *files.Holds
	Defaults  home.Defaults
	Meter     Meter
	// MaxFile and MaxAttachment bound uploads, in bytes.
	MaxFile, MaxAttachment int64
	// Transfers bounds the uploads that run at once, and the downloads; those above wait.
	Transfers int
	// Stall is how long an upload may send nothing.
	Stall time.Duration
}

// Server implements the services of the contract.
type Server struct {
	agentfsv1.UnimplementedEstablishmentServiceServer
	agentfsv1.UnimplementedFileServiceServer
	agentfsv1.UnimplementedHoldServiceServer
	agentfsv1.UnimplementedAuditServiceServer
	agentfsv1.UnimplementedBackupServiceServer
	cfg       Config
	uploads   chan struct{}
	downloads chan struct{}
}

// New makes a server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, uploads: make(chan struct{}, cfg.Transfers), downloads: make(chan struct{}, cfg.Transfers)}
}

// Register adds the services to r.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	agentfsv1.RegisterEstablishmentServiceServer(r, s)
	agentfsv1.RegisterFileServiceServer(r, s)
	agentfsv1.RegisterHoldServiceServer(r, s)
	agentfsv1.RegisterAuditServiceServer(r, s)
	agentfsv1.RegisterBackupServiceServer(r, s)
}

// place takes one of the places for transfers.
func place(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other transfers: %w", ctx.Err())
	}
}

// caller is who the ledger says acted.
func caller(ctx context.Context) agentfs.Caller {
	p, _ := rpc.PrincipalFrom(ctx)
	for _, r := range p.Roles {
		if name, ok := strings.CutPrefix(r, rpc.RoleService); ok {
			return agentfs.Caller{Actor: "service:" + name}
		}
	}
	return agentfs.Caller{Actor: "user:" + p.Subject}
}

type conversationNamer interface {
	GetOrganizationId() string
	GetConversationId() string
}

func named(r conversationNamer) authority.Conversation {
	return authority.Conversation{Organization: r.GetOrganizationId(), ID: r.GetConversationId()}
}

func (s *Server) tree(ctx context.Context, fs *agentfs.FS, c authority.Conversation) files.Tree {
	return files.Tree{FS: fs, Conversation: c, By: caller(ctx), Holds: s.cfg.Holds}
}

// within authorizes the conversation that r names and runs fn, which is short, with its files.
func (s *Server) within(ctx context.Context, r conversationNamer, fn func(files.Tree) error) error {
	c := named(r)
	if err := s.cfg.Authority.Conversation(ctx, c); err != nil {
		return err
	}
	return s.cfg.Store.With(ctx, c.Organization, func(fs *agentfs.FS) error { return fn(s.tree(ctx, fs, c)) })
}

// streaming is within for what lasts as long as the client likes.
func (s *Server) streaming(ctx context.Context, r conversationNamer, fn func(context.Context, files.Tree) error) error {
	c := named(r)
	if err := s.cfg.Authority.Conversation(ctx, c); err != nil {
		return err
	}
	return s.cfg.Store.Stream(ctx, c.Organization, func(ctx context.Context, fs *agentfs.FS) error {
		return fn(ctx, s.tree(ctx, fs, c))
	})
}

func invalid(format string, args ...any) error {
	return errs.New(errs.Invalid, rpc.ReasonInvalidArgument, format, args...)
}
