# bnrecon in a container. The image holds only the wheel, nothing else of the checkout:
#
#   make wheel && docker build -t bnrecon .                           for the processor
#   make wheel && docker build -t bnrecon --build-arg DEVICE=gpu .    for NVIDIA GPUs as well
#   docker run --rm -v "$PWD":/results bnrecon run experiment=quickstart
#
# docs/installation.md says more.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# cpu installs torch and torchvision from PyTorch's index of small builds without CUDA.
# gpu installs them from pip's default index: on Linux they have CUDA, and work without a GPU. It
# also installs a C compiler, with which torch.compile speeds up training on a GPU.
ARG DEVICE=cpu
RUN set -eu; \
    case "$DEVICE" in \
        cpu) pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
                 "torch>=2.10" "torchvision>=0.25" ;; \
        gpu) apt-get update; \
             apt-get install -y --no-install-recommends gcc libc6-dev; \
             rm -rf /var/lib/apt/lists/* ;; \
        *) echo "DEVICE=$DEVICE: give cpu or gpu" >&2; exit 2 ;; \
    esac

# Extras, as in --build-arg EXTRAS="[tensorboard]".
ARG EXTRAS=""
COPY dist/bnrecon-*.whl /tmp/wheel/
RUN set -eu; \
    [ "$(ls /tmp/wheel | wc -l)" = 1 ] || { echo "dist/ must hold one wheel" >&2; exit 2; }; \
    pip install --no-cache-dir "$(echo /tmp/wheel/*.whl)${EXTRAS}"; \
    rm -r /tmp/wheel; \
    bnrecon --version

# For --user UID: such a user has no name and no home folder in the image.
ENV HOME=/tmp USER=bnrecon
WORKDIR /results
ENTRYPOINT ["bnrecon"]
