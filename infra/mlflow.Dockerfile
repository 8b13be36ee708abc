# MLflow with what the official image lacks: drivers for PostgreSQL and S3, and basic auth.
FROM python:3.11-slim-bookworm
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir -c /tmp/constraints.txt 'mlflow[auth]' psycopg2-binary boto3 \
    && useradd --create-home mlflow
USER mlflow
WORKDIR /home/mlflow
EXPOSE 5000
CMD ["mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "2", "--app-name", "basic-auth"]
