# Commands of the project; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

MODULES := proto pkg services integration
PACKAGES := $(MODULES:%=./%/...)
# What the contracts must stay compatible with.
BASELINE ?= origin/main
DATA_DIR ?= $(or $(HUMANWORK_DATA_DIR),.humanwork)

BUF               := github.com/bufbuild/buf/cmd/buf@v1.75.0
GOLANGCI          := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
PROTOC_GEN_GO     := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GEN_GRPC   := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
PROTOC_GEN_GW     := github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-grpc-gateway@v2.33.0
PROTOC_GEN_OAPI   := github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2@v2.33.0
PROTOVALIDATE     := github.com/bufbuild/protovalidate@v1.2.2

# Go tools are pinned by version and checked by the module sum database. A tool is named after its
# version so that a new pin builds a new tool.
TOOLS := bin/tools
tool = $(TOOLS)/$(notdir $(subst @,-,$(1)))
define tool_rule
$(call tool,$(1)):
	@echo "Building $(notdir $(1))"
	@mkdir -p $(TOOLS)/.build
	@GOBIN=$(CURDIR)/$(TOOLS)/.build GOFLAGS= go install $(1)
	@mv $(TOOLS)/.build/$(firstword $(subst @, ,$(notdir $(1)))) $$@
endef
$(foreach t,$(BUF) $(GOLANGCI) $(PROTOC_GEN_GO) $(PROTOC_GEN_GRPC) $(PROTOC_GEN_GW) $(PROTOC_GEN_OAPI),$(eval $(call tool_rule,$(t))))
PROTO_TOOLS := $(foreach t,$(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GRPC) $(PROTOC_GEN_GW) $(PROTOC_GEN_OAPI),$(call tool,$(t)))

.PHONY: help
help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every binary into bin/
	@mkdir -p bin
	@go build -o bin/ $(addprefix ./,$(wildcard services/*/cmd/* integration/cmd/*))

.PHONY: demo
demo: build ## one real turn from start to end, then stop
	@bin/humanwork demo

.PHONY: run
run: build ## serve until interrupted
	@exec bin/humanwork run

.PHONY: test
test: build ## every test, against real Postgres and the real Hermes
	@HUMANWORK_STORM_TURNS=60 HUMANWORK_KILLS=25 bin/humanwork testenv --data-dir $(DATA_DIR) -- go test -race -timeout 25m $(TESTFLAGS) $(PACKAGES)

.PHONY: evidence
evidence: build ## the acceptance evidence; CLAUSES=E1,E6 runs some
	@bin/humanwork testenv --data-dir $(DATA_DIR) -- bin/evidence --clauses "$(CLAUSES)"

.PHONY: bench
bench: build ## the benchmarks, one JSON object a line
	@bin/humanwork testenv --data-dir $(DATA_DIR) -- bin/bench $(BENCHFLAGS)

# The proto imports of third parties come from the module cache, never from a copy in this tree.
.PHONY: proto-imports
proto-imports:
	@dir=$$(cd services && GOWORK=off go mod download -json $(PROTOVALIDATE) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'); \
	mkdir -p proto/.deps/buf/validate; \
	install -m 0644 "$$dir/proto/protovalidate/buf/validate/validate.proto" proto/.deps/buf/validate/

.PHONY: proto
proto: $(PROTO_TOOLS) proto-imports ## generate code from the contracts
	@for p in protoc-gen-go protoc-gen-go-grpc protoc-gen-grpc-gateway protoc-gen-openapiv2; do \
	  ln -sf "$$(ls $(TOOLS) | grep "^$$p-v")" "$(TOOLS)/$$p"; done
	@rm -rf proto/gen
	@$(call tool,$(BUF)) generate

.PHONY: verify
verify: proto $(call tool,$(GOLANGCI)) ## generated code, lint, vet, formats, tidiness: fails on a difference
	@git diff --exit-code --stat -- proto/gen || { echo "verify: generated code differs: run make proto and commit"; exit 1; }
	@test -z "$$(git ls-files --others --exclude-standard -- proto/gen)" || { echo "verify: generated files are not committed"; exit 1; }
	@$(call tool,$(BUF)) lint
	@$(call tool,$(BUF)) format --diff --exit-code --path proto/humanwork
	@if git rev-parse -q --verify $(BASELINE) >/dev/null && git cat-file -e $(BASELINE):buf.yaml 2>/dev/null; then \
	  old=$$(mktemp -d); trap 'rm -rf "$$old"' EXIT; \
	  git archive $(BASELINE) buf.yaml proto | tar -x -C "$$old"; cp -r proto/.deps "$$old/proto/"; \
	  $(call tool,$(BUF)) breaking --against "$$old"; fi
	@test -z "$$(gofmt -l $(MODULES) | grep -v '^proto/gen/')" || { gofmt -l $(MODULES); echo "verify: run gofmt -w"; exit 1; }
	@for m in $(MODULES); do (cd $$m && GOWORK=off GOFLAGS=-mod=mod go mod tidy -diff) || { echo "verify: run go mod tidy in $$m"; exit 1; }; done
	@go vet $(PACKAGES)
	@for m in pkg services integration; do (cd $$m && $(CURDIR)/$(call tool,$(GOLANGCI)) run ./...); done
	@echo "verify: clean"
